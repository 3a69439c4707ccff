-- Put in front of scripts that publish: makes an attempt the next version of its policy, and retires older versions.
-- keys: names of fence, heads, events, kept versions, pinned versions, request ids; prefix: of version keys
-- announced: whether the new head is an event. If not, its event is "0-0", which comes before every cursor of Watch.
-- The caller has checked that the publish is allowed. Answers the version.
local function flip(keys, prefix, attempt, policy, req_id, first, epoch, keep, keep_events, announced)
  local function key_of(version)
    return prefix .. version .. ':' .. policy
  end

  local head = tonumber(redis.call('HGET', keys.heads, policy) or 0)
  local version = head == 0 and first or head + 1
  local event = '0-0'
  if announced then
    event = redis.call('XADD', keys.events, 'MAXLEN', '~', keep_events, '*', 'policy', policy, 'version', version)
  end
  if epoch > tonumber(redis.call('HGET', keys.fence, 'epoch') or 0) then
    redis.call('HSET', keys.fence, 'epoch', epoch)
  end
  redis.call('RENAME', attempt, key_of(version))
  redis.call('PERSIST', key_of(version))
  redis.call('HSET', key_of(version), 'event', event)
  redis.call('HSET', keys.requests, req_id, version)
  redis.call('ZADD', keys.kept, version, version)
  redis.call('HSET', keys.heads, policy, version)

  for _, old in ipairs(redis.call('ZRANGE', keys.kept, 0, -keep - 1)) do
    if redis.call('SISMEMBER', keys.pinned, old) == 0 then
      redis.call('HDEL', keys.requests, redis.call('HGET', key_of(old), 'req_id'))
      redis.call('ZREM', keys.kept, old)
      redis.call('UNLINK', key_of(old))
    end
  end
  return version
end
