-- Pins (ARGV[2] = 1) or unpins a version; answers 0 if there is no such version.
-- KEYS: kept versions, pinned versions   ARGV: version, 1 or 0
local kept, pinned, version = KEYS[1], KEYS[2], ARGV[1]
if not redis.call('ZSCORE', kept, version) then
  return 0
end
redis.call(ARGV[2] == '1' and 'SADD' or 'SREM', pinned, version)
return 1
