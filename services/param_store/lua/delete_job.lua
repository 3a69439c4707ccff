-- Deletes all of a job but its fence, which is raised and left for a while: writers of the deleted job stay out.
-- KEYS: fence, heads, events
-- ARGV: prefix of all keys of the job, seconds for which the fence remains, epoch of who deletes (0: nobody runs the job)
-- Answers 0, or the store's epoch if that of who deletes is over. Of what is gone already nothing is refused: the first
-- answer may have been lost.
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
