// What the engine does now, out of two readings of /metrics.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)/;

// Sums by name, without labels; a histogram's buckets by their bound; means by name and tier.
export function parse(text) {
  const sums = new Map();
  const buckets = new Map();
  const tiers = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
    if (!name) continue;
    sums.set(name, (sums.get(name) ?? 0) + Number(value));
    const [, tier] = /tier="([^"]+)"/.exec(labels) ?? [];
    if (tier) noteTier(tiers, `${name} ${tier}`, Number(value));
    const bound = /le="([^"]+)"/.exec(labels);
    if (!bound) continue;
    const found = buckets.get(name) ?? new Map();
    buckets.set(name, found);
    const limit = bound[1] === "+Inf" ? Infinity : Number(bound[1]);
    found.set(limit, (found.get(limit) ?? 0) + Number(value));
  }
  return { at: performance.now() / 1000, sums, buckets, tiers };
}

function noteTier(tiers, key, value) {
  const found = tiers.get(key) ?? { sum: 0, count: 0 };
  tiers.set(key, { sum: found.sum + value, count: found.count + 1 });
}

// A share of a tier, the mean of several models; undefined if no model has the tier.
export function ofTier(now, name, tier) {
  const found = now.tiers.get(`${name} ${tier}`);
  return found && found.sum / found.count;
}

// The share of one counter's growth in another's; undefined if that did not grow.
export function grownShare(now, before, part, whole) {
  const grown = (name) => (now.sums.get(name) ?? 0) - (before?.sums.get(name) ?? 0);
  return before && grown(whole) > 0 ? Math.max(0, grown(part) / grown(whole)) : undefined;
}

export function rate(now, before, name) {
  const moved = (now.sums.get(name) ?? 0) - (before.sums.get(name) ?? 0);
  return now.at > before.at ? Math.max(0, moved) / (now.at - before.at) : 0;
}

// The median of what a histogram took in between two readings; undefined for nothing.
export function median(now, before, name) {
  const later = now.buckets.get(name) ?? new Map();
  const earlier = before?.buckets.get(name) ?? new Map();
  const counts = [...later].sort(([a], [b]) => a - b)
    .map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return undefined;
  let [floor, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= all / 2) {
      if (bound === Infinity) return floor;
      return floor + ((bound - floor) * (all / 2 - below)) / (count - below);
    }
    [floor, below] = [bound, count];
  }
  return undefined;
}
