-- Health of an AtomDeployment for Argo CD: Suspended at 0 replicas, Degraded when something fails or
-- somebody has to act, Progressing while the operator goes on by itself. Plain Lua 5.1 without the
-- string library, which is what Argo CD offers.
local function health(status, message)
  return { status = status, message = message or "" }
end

local status = obj.status
if status == nil or status.conditions == nil then
  return health("Progressing", "the operator has not looked at this object yet")
end
-- Until then the conditions are about an older spec.
if status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "the operator has not looked at the latest change yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready, progressing, degraded = conditions.Ready, conditions.Progressing, conditions.Degraded
if ready == nil or progressing == nil or degraded == nil then
  return health("Progressing", "the operator has not written every condition yet")
end

if ready.status == "True" then
  if ready.reason == "ScaledToZero" then
    return health("Suspended", ready.message)
  end
  return health("Healthy", ready.message)
end

-- Progressing is False with any reason but Complete once the operator does not go on by itself.
local gave_up = progressing.status == "False" and progressing.reason ~= "Complete"
-- Ready's message is that of whatever stands in the way most.
if gave_up or degraded.status == "True" then
  return health("Degraded", ready.message)
end
if ready.reason == "Suspended" then
  return health("Suspended", ready.message)
end
return health("Progressing", ready.message)
