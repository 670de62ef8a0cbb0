#!lua flags=allow-oom
-- Take a batch that is in the database out of Redis.
--
-- KEYS
--   [1] hash: the batch: #id, #at, #tries, video -> plays
--   [2] set: videos with plays not yet in the database
--   [3] set: videos whose plays the database refused
--   [4] string: id of the last settled batch
--   then for each video of the batch
--     string: plays not yet in the database
--     string: what the database holds
-- ARGV
--   [1] the batch's id
--   [2] seconds for which what the database holds is kept
--   then for each video of the batch
--     the video
--     what the database holds now; "" if it refused the plays
-- Returns { settled, short, left }
--   settled  1, or 0 where the batch isn't this one: it was settled before
--   short    videos with fewer plays here than were added to the database, or with no number
--   left     videos that have plays not yet in the database
--
-- A batch with #raised in it (raise.lua) came to the database beside plays of a Kafka log: what the
-- database held right after the batch may be too little by now, and totals go. The next read fills them.
--
-- What is taken off is what the batch itself says. Once begun it runs to its end: an error halfway
-- would leave the batch there with some of its plays taken off already. That is why it is allowed to
-- run when memory is short, of which it frees some.
--
-- Example, batch "b1" of 3 plays of "42", delta 5, dirty { "42" }:
--   KEYS { "video:views:batch:{0}", "video:views:dirty:{0}", "video:views:refused:{0}",
--          "video:views:settled:{0}", "video:views:delta:{0}:42", "video:views:total:{0}:42" }
--   ARGV { "b1", "3600", "42", "103" }  ->  { 1, 0, 1 }, and delta 2, total 103, no batch
assert(#KEYS >= 4 and #KEYS % 2 == 0, 'settle: want 4 keys and 2 a video')
assert(#ARGV == #KEYS - 2, 'settle: want 2 args and 2 a video')

if redis.call('HGET', KEYS[1], '#id') ~= ARGV[1] then
  return { 0, 0, redis.call('SCARD', KEYS[2]) }
end

local claimed = redis.call('HGETALL', KEYS[1])
local plays = {}
for field = 1, #claimed, 2 do
  plays[claimed[field]] = claimed[field + 1]
end

-- What is the same for many videos is done by one command for all of them: nobody else is served
-- meanwhile. Most have no other plays than those of the batch.
local deltas = {}
for key = 5, #KEYS, 2 do
  deltas[#deltas + 1] = KEYS[key]
end
local waiting = #deltas > 0 and redis.pcall('MGET', unpack(deltas)) or {}

local short, done, refused, gone = 0, {}, {}, {}
for arg = 3, #ARGV, 2 do
  local video, views = ARGV[arg], ARGV[arg + 1]
  local delta, total = KEYS[arg + 2], KEYS[arg + 3]
  if views == '' then
    refused[#refused + 1] = video
  elseif plays[video] then
    local left = 0
    if waiting[(arg - 1) / 2] ~= plays[video] then
      left = redis.pcall('DECRBY', delta, plays[video])
    end
    if type(left) ~= 'number' then
      short = short + 1
      refused[#refused + 1] = video
    elseif left <= 0 then
      if left < 0 then
        short = short + 1
      end
      done[#done + 1] = video
      gone[#gone + 1] = delta
    end
    if views == '0' or plays['#raised'] then
      gone[#gone + 1] = total
    else
      redis.pcall('SET', total, views, 'EX', ARGV[2])
    end
  end
end
if #refused > 0 then
  redis.pcall('SREM', KEYS[2], unpack(refused))
  redis.pcall('SADD', KEYS[3], unpack(refused))
end
if #done > 0 then
  redis.pcall('SREM', KEYS[2], unpack(done))
  redis.pcall('SREM', KEYS[3], unpack(done))
end
if #gone > 0 then
  redis.pcall('DEL', unpack(gone))
end
redis.call('SET', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[1])
return { 1, short, redis.call('SCARD', KEYS[2]) }
