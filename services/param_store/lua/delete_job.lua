-- Deletes all keys of a job except its fence, which is raised and kept for a while, so that its writers stay fenced off.
-- KEYS: fence, heads, events
-- ARGV: prefix of all keys of the job, seconds for which the fence remains, epoch of the caller (0: nobody runs the job)
-- Answers 0, or the store's epoch if the caller's is over. A job that is gone already is not refused, because the answer
-- to an earlier call may have been lost.
local fence, heads, events = unpack(KEYS)
local prefix, remain_s, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local newest = tonumber(redis.call('HGET', fence, 'epoch') or 0)
if epoch > 0 and epoch < newest then
  return redis.call('EXISTS', heads) == 1 and newest or 0
end
for _, policy in ipairs(redis.call('HKEYS', heads)) do
  local kept = prefix .. 'kept:' .. policy
  for _, version in ipairs(redis.call('ZRANGE', kept, 0, -1)) do
    redis.call('UNLINK', prefix .. 'v:' .. version .. ':' .. policy)
  end
  redis.call('UNLINK', kept, prefix .. 'pinned:' .. policy, prefix .. 'requests:' .. policy)
end
redis.call('UNLINK', heads, events)
if redis.call('EXISTS', fence) == 1 then
  redis.call('HINCRBY', fence, 'epoch', 1)
  redis.call('EXPIRE', fence, remain_s)
end
return 0
