#!lua
-- Raise totals to what the database holds after plays were counted from a Kafka log.
--
-- KEYS
--   [1] hash: the batch on its way to the database: #id, #at, #tries, video -> plays
--   [2] string: id of the last settled batch
--   [3] set: videos with plays not yet in the database
--   then for each video
--     string: what the database holds
--     HyperLogLog: unique viewers of the video
--     HyperLogLog: a place for the sketch of them while it is merged
-- ARGV
--   [1] a mark that nobody has used before
--   [2] seconds for which what the database holds is kept
--   then for each video
--     what the database holds
--     the sketch of its unique viewers, "" for no news
-- Returns how many totals were raised
--
-- A total that isn't there is not made: nobody has asked for it, and who asks fills it with care
-- (view_fill). For one who is just filling it with what the database held before, the mark is written
-- behind the id of the last settled batch: then that look is over. A total is never lowered: it may hold
-- more, raised by a later call.
-- Where a batch is on its way (plays that were recorded before Kafka was) what the database holds may
-- have them or not. Totals go then, and #raised tells the settling not to write what is older.
-- While plays wait here viewers do as well, in the sketch: it is merged then, else replaced.
--
-- Example, total 100 of "42":
--   KEYS { "video:views:batch:{0}", "video:views:settled:{0}", "video:views:dirty:{0}",
--          "video:views:total:{0}:42", "video:views:uv:{0}:42", "video:views:sketch:{0}:42" }
--   ARGV { "m1", "3600", "103", "" }  ->  1, and total 103, settled " m1"
assert(#KEYS >= 3 and #KEYS % 3 == 0, 'raise: want 3 keys and 3 a video')
assert(#ARGV == 2 + (#KEYS - 3) / 3 * 2, 'raise: want 2 args and 2 a video')

-- As texts: a number of Lua's is exact only up to 2^53.
local function is_more(left, right)
  return #left > #right or (#left == #right and left > right)
end

local moving = redis.call('EXISTS', KEYS[1]) == 1
local waiting = moving or redis.call('EXISTS', KEYS[3]) == 1
local raised = 0
for key = 4, #KEYS, 3 do
  local arg = 3 + (key - 4) / 3 * 2
  local total, views, sketch = redis.pcall('GET', KEYS[key]), ARGV[arg], ARGV[arg + 1]
  local is_there = type(total) == 'string'
  if is_there and (moving or not string.find(total, '^%d+$')) then
    redis.call('DEL', KEYS[key])
  elseif is_there and is_more(views, total) then
    redis.call('SET', KEYS[key], views, 'EX', ARGV[2])
    raised = raised + 1
  end
  if sketch ~= '' and waiting then
    redis.pcall('SET', KEYS[key + 2], sketch, 'EX', 60)
    redis.pcall('PFMERGE', KEYS[key + 1], KEYS[key + 2])
    redis.pcall('EXPIRE', KEYS[key + 1], 30 * 24 * 3600)
    redis.pcall('DEL', KEYS[key + 2])
  elseif sketch ~= '' and is_there then
    redis.pcall('SET', KEYS[key + 1], sketch, 'EX', ARGV[2])
  end
end
if moving then
  redis.call('HSET', KEYS[1], '#raised', '1')
end
local settled = string.match(redis.call('GET', KEYS[2]) or '', '^[^ ]*')
redis.call('SET', KEYS[2], settled .. ' ' .. ARGV[1])
return raised
