-- Takes the next epoch of a job, which is at least the one that is asked for; the same req_id gets the same epoch.
-- KEYS: fence   ARGV: req_id, least epoch
local fence, request = KEYS[1], 'req:' .. ARGV[1]
local before = redis.call('HGET', fence, request)
if before then
  return tonumber(before)
end
local epoch = math.max(tonumber(redis.call('HGET', fence, 'epoch') or 0) + 1, tonumber(ARGV[2]))
redis.call('HSET', fence, 'epoch', string.format('%.0f', epoch), request, string.format('%.0f', epoch))
redis.call('PERSIST', fence)
return epoch
