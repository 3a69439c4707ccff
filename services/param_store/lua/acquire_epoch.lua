-- Takes the next epoch of a job; the same req_id gets the same epoch.
-- KEYS: fence   ARGV: req_id
local fence, request = KEYS[1], 'req:' .. ARGV[1]
local before = redis.call('HGET', fence, request)
if before then
  return tonumber(before)
end
local epoch = redis.call('HINCRBY', fence, 'epoch', 1)
redis.call('HSET', fence, request, epoch)
redis.call('PERSIST', fence)
return epoch
