-- Reads the metadata of versions, atomically.
-- KEYS: heads
-- ARGV: prefix of version keys, then policy and version (0: its head) in turn; no policy means every head
-- Answers one list per version: policy, version, round, epoch, req_id, published_s, event, manifest; the last six are
-- nil where there is no such version.
local heads, prefix = KEYS[1], ARGV[1]
local wanted = {unpack(ARGV, 2)}
if #wanted == 0 then
  wanted = redis.call('HGETALL', heads)
end

local found = {}
for i = 1, #wanted, 2 do
  local policy, version = wanted[i], wanted[i + 1]
  if version == '0' then
    version = redis.call('HGET', heads, policy) or '0'
  end
  local fields = redis.call(
    'HMGET', prefix .. version .. ':' .. policy, 'round', 'epoch', 'req_id', 'published_s', 'event', 'manifest')
  found[#found + 1] = {policy, version, unpack(fields)}
end
return found
