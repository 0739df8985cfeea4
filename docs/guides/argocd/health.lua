-- Health of an AtomDeployment for Argo CD: Suspended without replicas, Degraded when something fails or
-- somebody has to act, Progressing while the operator goes on by itself. Plain Lua 5.1 without the
-- string library, which is what Argo CD offers.
local function health(status, message)
  return { status = status, message = message or "" }
end

local status = obj.status
-- Until then the conditions are about an older spec.
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "the operator has not looked at the latest change yet")
end

local is, ready = {}, nil
for _, condition in ipairs(status.conditions) do
  is[condition.type] = condition.status == "True"
  if condition.type == "Ready" then
    ready = condition
  end
end
if ready == nil then
  return health("Progressing", "the operator has not written every condition yet")
end

-- Ready's message is that of whatever stands in the way most.
if is.Stalled or is.Degraded and not is.Ready then
  return health("Degraded", ready.message)
end
if ready.reason == "Suspended" or ready.reason == "ScaledToZero" then
  return health("Suspended", ready.message)
end
return health(is.Ready and "Healthy" or "Progressing", ready.message)
