-- Take videos that nobody watches any more off the registry, unless one was registered since.
--
-- KEYS
--   [1] zset: video -> last registered beat, Unix seconds
-- ARGV
--   [1] a video whose last registered beat is earlier leaves, Unix seconds
--   [2] and on: the videos
-- Returns how many left
--
-- Example, zset { a = 100, b = 900 }: KEYS { "video:active:{0}" }  ARGV { "400", "a", "b" }  ->  1
assert(#KEYS == 1, 'registry_leave: want 1 key')
assert(#ARGV >= 2, 'registry_leave: want at least 2 args')

local limit, left = tonumber(ARGV[1]), 0
for index = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[index])
  if score and tonumber(score) < limit then
    left = left + redis.call('ZREM', KEYS[1], ARGV[index])
  end
end
return left
