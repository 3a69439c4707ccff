-- Publishes attempts as the next versions of their policies and removes the gradients that they were made of; or refuses
-- all, and removes the attempts only.
-- KEYS: fence, heads, events, then the attempts
-- ARGV: prefix of all keys of the job, epoch, versions to keep, events to keep, number of gradients that must exist;
--       policy, req_id and expected head of each attempt; name and version of each of these gradients; names of others
-- Answers {"published", versions ...}, {"fenced", the store's epoch}, or, with the position of an attempt or a gradient,
-- {"conflict", the head, position}, {"partly", the version, position}, {"missing", position}. Positions start at 0.
local fence, heads, events = KEYS[1], KEYS[2], KEYS[3]
local prefix, epoch, keep, keep_events, needed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local attempts = #KEYS - 3
local gradients = 6 + 3 * attempts
local others = gradients + 2 * needed

local function refuse(...)
  for i = 1, attempts do
    redis.call('UNLINK', KEYS[3 + i])
  end
  return {...}
end

local function remove(policy)
  local kept = prefix .. 'kept:' .. policy
  for _, version in ipairs(redis.call('ZRANGE', kept, 0, -1)) do
    redis.call('UNLINK', prefix .. 'v:' .. version .. ':' .. policy)
  end
  redis.call('UNLINK', kept, prefix .. 'pinned:' .. policy, prefix .. 'requests:' .. policy)
  redis.call('HDEL', heads, policy)
end

local answer, done = {'published'}, nil
for i = 0, attempts - 1 do
  local policy, req_id = ARGV[6 + 3 * i], ARGV[7 + 3 * i]
  local before = redis.call('HGET', prefix .. 'requests:' .. policy, req_id)
  if before then
    answer[#answer + 1] = tonumber(before)
    done = i
  end
end
if #answer == 1 + attempts then
  refuse()
  return answer
end
if done then
  return refuse('partly', answer[#answer], done)
end
local newest = tonumber(redis.call('HGET', fence, 'epoch') or 0)
if epoch < newest then
  return refuse('fenced', newest)
end
for i = 0, attempts - 1 do
  local head = tonumber(redis.call('HGET', heads, ARGV[6 + 3 * i]) or 0)
  if head ~= tonumber(ARGV[8 + 3 * i]) then
    return refuse('conflict', head, i)
  end
end
for i = 0, needed - 1 do
  if redis.call('EXISTS', prefix .. 'v:' .. ARGV[gradients + 2 * i + 1] .. ':' .. ARGV[gradients + 2 * i]) == 0 then
    return refuse('missing', i)
  end
end

for i = 0, attempts - 1 do
  local policy, req_id = ARGV[6 + 3 * i], ARGV[7 + 3 * i]
  local keys = {
    fence = fence, heads = heads, events = events, kept = prefix .. 'kept:' .. policy,
    pinned = prefix .. 'pinned:' .. policy, requests = prefix .. 'requests:' .. policy,
  }
  answer[#answer + 1] = flip(keys, prefix .. 'v:', KEYS[4 + i], policy, req_id, 1, epoch, keep, keep_events, true)
end
for i = gradients, others - 1, 2 do
  remove(ARGV[i])
end
for i = others, #ARGV do
  remove(ARGV[i])
end
return answer
