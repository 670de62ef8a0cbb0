#!lua flags=no-writes
-- Look at videos whose total isn't kept, together with what may be on its way to the database.
--
-- KEYS
--   [1] hash: the batch on its way to the database
--   [2] string: id of the last settled batch
--   then for each video
--     string: what the database holds
--     string: plays not yet in the database
-- ARGV
--   the videos
-- Returns { batch, settled, then for each video: total, delta, plays }
--   batch    id of the batch, "" for none
--   settled  id of the last settled batch, "" for none
--   total    what the database holds, if it is kept by now
--   delta    plays not yet in the database, if there are any
--   plays    those of them that are in the batch, if there are any
--
-- Example, delta 5 of "42", batch "b1" of 3 of them, nothing settled yet:
--   KEYS { "video:views:batch:{0}", "video:views:settled:{0}",
--          "video:views:total:{0}:42", "video:views:delta:{0}:42" }
--   ARGV { "42" }  ->  { "b1", "", nil, "5", "3" }
assert(#KEYS >= 4 and #KEYS % 2 == 0, 'view_look: want 2 keys and 2 a video')
assert(#ARGV == #KEYS / 2 - 1, 'view_look: want 1 arg a video')

local counts = redis.call('MGET', unpack(KEYS, 3))
local plays = redis.call('HMGET', KEYS[1], '#id', unpack(ARGV))
local result = { plays[1] or '', redis.call('GET', KEYS[2]) or '' }
for video = 1, #ARGV do
  result[#result + 1] = counts[2 * video - 1]
  result[#result + 1] = counts[2 * video]
  result[#result + 1] = plays[video + 1]
end
return result
