#!lua
-- Keep totals that were read from the database, unless a batch moved between the look and now.
--
-- KEYS
--   [1] hash: the batch on its way to the database
--   [2] string: id of the last settled batch
--   then for each video
--     string: what the database holds
--     string: plays not yet in the database
-- ARGV
--   [1] id of the batch at the look, "" for none
--   [2] id of the last settled batch at the look, "" for none
--   [3] seconds for which a total is kept
--   then for each video
--     the video
--     what the database holds without the batch
-- Returns { batch, settled, then for each video: total, delta, plays }
--   batch, settled, delta, plays  as in view_look, now
--   total                         what the database holds without the batch; none where that isn't
--                                 known: this answer is the look for the next round then
--
-- The id of the last settled batch tells that none came and went in between. A mark behind it tells that
-- totals were raised since (raise): what was read was right then, and is answered, but not kept, as it may
-- lack what came. A total of 0 is not kept: it may be that of a video that doesn't exist.
--
-- Example, delta 5 of "42", batch "b1" as it was at the look:
--   KEYS { "video:views:batch:{0}", "video:views:settled:{0}",
--          "video:views:total:{0}:42", "video:views:delta:{0}:42" }
--   ARGV { "b1", "", "3600", "42", "100" }  ->  { "b1", "", "100", "5", "3" }, and total 100
assert(#KEYS >= 4 and #KEYS % 2 == 0, 'view_fill: want 2 keys and 2 a video')
assert(#ARGV == #KEYS + 1, 'view_fill: want 3 args and 2 a video')

local videos = {}
for arg = 4, #ARGV, 2 do
  videos[#videos + 1] = ARGV[arg]
end
local counts = redis.call('MGET', unpack(KEYS, 3))
local plays = redis.call('HMGET', KEYS[1], '#id', unpack(videos))
local batch, settled = plays[1] or '', redis.call('GET', KEYS[2]) or ''
local function id_of(mark)
  return string.match(mark, '^[^ ]*')
end
local unmoved = batch == ARGV[1] and id_of(settled) == id_of(ARGV[2])
local unraised = settled == ARGV[2]

local result = { batch, settled }
for video = 1, #videos do
  local total = counts[2 * video - 1]
  if not total and unmoved then
    total = ARGV[2 * video + 3]
    if total ~= '0' and unraised then
      redis.call('SET', KEYS[2 * video + 1], total, 'EX', ARGV[3])
    end
  end
  result[#result + 1] = total
  result[#result + 1] = counts[2 * video]
  result[#result + 1] = plays[video + 1]
end
return result
