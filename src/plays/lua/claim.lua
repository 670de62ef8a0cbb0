#!lua flags=allow-oom
-- Claim plays of one partition for the database: note them in a batch under an id.
--
-- KEYS
--   [1] hash: the batch on its way to the database: #id, #at, #tries, video -> plays
--   [2] set: videos with plays not yet in the database
--   [3] set: videos whose plays the database refused
--   then for each video
--     string: plays not yet in the database
-- ARGV
--   [1] id for a new batch
--   [2] now, Unix milliseconds; "" to ask the server
--   then the videos
-- Returns {} where there is nothing to claim, else text only
--   { id, claimed at, tries, now, "1" if claimed by this call, video, plays, video, plays... }
--
-- A batch that is there is answered as it is, whatever the videos: it is brought to its end first.
-- Plays stay where they are until the batch is settled. A video without plays loses its mark here,
-- in the same step that saw there are none; one whose plays are no number is left to an operator.
--
-- Example, delta 3 of "42":
--   KEYS { "video:views:batch:{0}", "video:views:dirty:{0}", "video:views:refused:{0}",
--          "video:views:delta:{0}:42" }
--   ARGV { "b1", "5000", "42" }  ->  { "b1", "5000", "1", "5000", "1", "42", "3" }
assert(#KEYS >= 3, 'claim: want 3 keys and one a video')
assert(#ARGV == #KEYS - 1, 'claim: want 2 args and one a video')

local now = ARGV[2]
if now == '' then
  local time = redis.call('TIME')
  now = string.format('%d%03d', time[1], math.floor(time[2] / 1000))
end

if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], '#tries', 1)
  local batch = redis.call('HGETALL', KEYS[1])
  local head, result = {}, { '', '0', '0', now, '0' }
  for field = 1, #batch, 2 do
    if string.sub(batch[field], 1, 1) == '#' then
      head[batch[field]] = batch[field + 1]
    else
      result[#result + 1] = batch[field]
      result[#result + 1] = batch[field + 1]
    end
  end
  result[1] = head['#id'] or result[1]
  result[2] = head['#at'] or result[2]
  result[3] = head['#tries'] or result[3]
  return result
end

-- All of them by one command: a command each takes three times as long, and nobody else is served.
local deltas = #KEYS > 3 and redis.call('MGET', unpack(KEYS, 4)) or {}
local result, filled = { ARGV[1], now, '1', now, '1' }, 5
for video = 3, #ARGV do
  local plays = deltas[video - 2]
  if plays and string.find(plays, '^[1-9]%d*$') then
    result[filled + 1], result[filled + 2] = ARGV[video], plays
    filled = filled + 2
  else
    local delta = KEYS[video + 1]
    redis.call('SREM', KEYS[2], ARGV[video])
    if plays == '0' then
      redis.call('DEL', delta)
    elseif redis.call('EXISTS', delta) == 1 then
      redis.call('SADD', KEYS[3], ARGV[video])
    end
  end
end
if filled == 5 then
  return {}
end
if filled > 300 then
  -- A long value has Redis make a hashtable at once. Of this many fields it becomes one anyway, after
  -- it has looked through all that is there for each that is added.
  redis.call('HSET', KEYS[1], '#id', string.rep('-', 65))
end
redis.call('HSET', KEYS[1], '#id', ARGV[1], '#at', now, '#tries', '1', unpack(result, 6))
return result
