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

local function answer(made)
  local batch = redis.call('HGETALL', KEYS[1])
  local head, plays = {}, {}
  for field = 1, #batch, 2 do
    if string.sub(batch[field], 1, 1) == '#' then
      head[batch[field]] = batch[field + 1]
    else
      plays[#plays + 1] = batch[field]
      plays[#plays + 1] = batch[field + 1]
    end
  end
  local result = { head['#id'] or '', head['#at'] or '0', head['#tries'] or '0', now, made }
  for _, part in ipairs(plays) do
    result[#result + 1] = part
  end
  return result
end

if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], '#tries', 1)
  return answer('0')
end

local batch = { '#id', ARGV[1], '#at', now, '#tries', '1' }
for video = 3, #ARGV do
  local delta = KEYS[video + 1]
  local plays = redis.pcall('GET', delta)
  if type(plays) == 'string' and string.find(plays, '^[1-9]%d*$') then
    batch[#batch + 1] = ARGV[video]
    batch[#batch + 1] = plays
  else
    redis.call('SREM', KEYS[2], ARGV[video])
    if plays == '0' then
      redis.call('DEL', delta)
    elseif plays then
      redis.call('SADD', KEYS[3], ARGV[video])
    end
  end
end
if #batch == 6 then
  return {}
end
redis.call('HSET', KEYS[1], unpack(batch))
return answer('1')
