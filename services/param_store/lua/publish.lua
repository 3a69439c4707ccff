-- Publishes an attempt as the next version of its policy, or refuses it; the attempt is removed in both cases.
-- KEYS: attempt, fence, heads, events, kept versions, pinned versions, request ids
-- ARGV: prefix of version keys, policy, req_id, expected head, epoch, versions to keep, events to keep, first version,
--       1 if a newer epoch than the store's begins with this publish, 0 if it is refused; 1 if watchers see the new head
-- Answers {"published", version}, {"fenced" or "early", the store's epoch} or {"conflict", the head}.
local attempt, fence, heads, events, kept, pinned, requests = unpack(KEYS)
local prefix, policy, req_id = ARGV[1], ARGV[2], ARGV[3]
local expected, epoch, keep, keep_events = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local first, begins, announced = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10] == '1'

local function refuse(outcome, number)
  redis.call('UNLINK', attempt)
  return {outcome, number}
end

local before = redis.call('HGET', requests, req_id)
if before then
  return refuse('published', tonumber(before))
end
local newest = tonumber(redis.call('HGET', fence, 'epoch') or 0)
if epoch < newest then
  return refuse('fenced', newest)
end
if epoch > newest and not begins then
  return refuse('early', newest)
end
local head = tonumber(redis.call('HGET', heads, policy) or 0)
if head ~= expected then
  return refuse('conflict', head)
end
local keys = {fence = fence, heads = heads, events = events, kept = kept, pinned = pinned, requests = requests}
return {'published', flip(keys, prefix, attempt, policy, req_id, first, epoch, keep, keep_events, announced)}
