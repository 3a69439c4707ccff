-- Publishes an attempt as the next version of its policy, or refuses it; the attempt is removed in both cases.
-- KEYS: attempt, fence, heads, events, kept versions, pinned versions, request ids
-- ARGV: prefix of version keys, policy, req_id, expected head, epoch, versions to keep, events to keep, first version,
--       1 if a newer epoch than the store's begins with this publish, 0 if it is refused
-- Answers {"published", version}, {"fenced" or "early", the store's epoch} or {"conflict", the head}.
local attempt, fence, heads, events, kept, pinned, requests = unpack(KEYS)
local prefix, policy, req_id = ARGV[1], ARGV[2], ARGV[3]
local expected, epoch, keep, keep_events = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local first, begins = tonumber(ARGV[8]), ARGV[9] == '1'

local function key_of(version)
  return prefix .. version .. ':' .. policy
end

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

local version = head == 0 and first or head + 1
local event = redis.call('XADD', events, 'MAXLEN', '~', keep_events, '*', 'policy', policy, 'version', version)
if epoch > newest then
  redis.call('HSET', fence, 'epoch', epoch)
end
redis.call('RENAME', attempt, key_of(version))
redis.call('PERSIST', key_of(version))
redis.call('HSET', key_of(version), 'event', event)
redis.call('HSET', requests, req_id, version)
redis.call('ZADD', kept, version, version)
redis.call('HSET', heads, policy, version)

for _, old in ipairs(redis.call('ZRANGE', kept, 0, -keep - 1)) do
  if redis.call('SISMEMBER', pinned, old) == 0 then
    redis.call('HDEL', requests, redis.call('HGET', key_of(old), 'req_id'))
    redis.call('ZREM', kept, old)
    redis.call('UNLINK', key_of(old))
  end
end
return {'published', version}
