-- Prolong a lock that is still mine.
--
-- KEYS
--   [1] string: the owner's token
-- ARGV
--   [1] my token
--   [2] milliseconds from now until it runs out
-- Returns 1, or 0 where the lock is somebody else's or nobody's
--
-- Example, lock "a": KEYS { "task:lock:sweep:{0}" }  ARGV { "a", "54000" }  ->  1
assert(#KEYS == 1, 'lock_renew: want 1 key')
assert(#ARGV == 2, 'lock_renew: want 2 args')

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
