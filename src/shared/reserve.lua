-- The shared bucket in Redis or Valkey: reservation.rs in Lua, on the server's clock. One declared key.
-- Numbers are doubles here, exact below 2^53; the client has multiplied everything out, so that there are only pairs
-- (microseconds, n-ths of one) to be added and compared, and it refuses what would grow too large.
-- The value: "leaky1 N P_US UNIT TAT_US TAT_REM". The answer: one line of words, the first a number that says what it is.
--
-- ARGV: OP N P_US UNIT, and
--   reserve  SPAN CREDIT MAX_WAIT FLOOR   each two words; a MAX_WAIT of -1 0 is none
--   return   END BACK
--   peek     nothing
local op, n_word, p_word, unit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local n = tonumber(n_word)
local DAY, LONGEST = 86400000000, 2251799813685248

local function answer(...)
  local words = {...}
  for i, word in ipairs(words) do
    if type(word) == 'number' then words[i] = string.format('%.0f', word) end
  end
  return table.concat(words, ' ')
end

local function pair(i)
  return tonumber(ARGV[i]), tonumber(ARGV[i + 1])
end

local function less(us, rem, than_us, than_rem)
  return us < than_us or (us == than_us and rem < than_rem)
end

local function minus(us, rem, by_us, by_rem)
  if not less(by_us, by_rem, us, rem) then return 0, 0 end
  if rem < by_rem then us, rem = us - 1, rem + n end
  return us - by_us, rem - by_rem
end

-- A TAT further ahead than this is nobody's: max(1 day, 10^5 T).
local function horizon(its_n, its_p)
  return math.max(DAY, math.min(math.floor(its_p * 100000 / its_n), LONGEST))
end

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then return value end -- of another type
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local its_n, its_p, its_unit, tat, tat_rem
if value then
  its_n, its_p, its_unit, tat, tat_rem = string.match(value, '^leaky1 (%d+) (%d+) (%l+) (%d+) (%d+)$')
  if not its_n then return answer(4) end
  tat, tat_rem = tonumber(tat), tonumber(tat_rem)
end
local used = value and less(now, 0, tat, tat_rem)
local absurd = used and tat - now > horizon(tonumber(its_n), tonumber(its_p))
local ours = value and its_n == n_word and its_p == p_word and its_unit == unit

-- Kept until it equals a fresh one, rounded up; one more, because the key's clock was read a little before ours.
local function keep(us, rem)
  local text = table.concat({'leaky1', n_word, p_word, unit, string.format('%.0f', us), string.format('%.0f', rem)}, ' ')
  local ms = math.max(math.ceil((us - now + 1) / 1000), 0) + 1
  return redis.pcall('SET', KEYS[1], text, 'PX', string.format('%.0f', ms))
end

if op == 'peek' then
  if not used or absurd then return answer(1, now) end
  return answer(1, now, tat, tat_rem, its_n, its_p, its_unit)
end

if op == 'return' then
  local end_us, end_rem = pair(5)
  if not ours or tat ~= end_us or tat_rem ~= end_rem then return answer(0) end
  local kept = keep(minus(tat, tat_rem, pair(7)))
  if kept.err then return kept end
  return answer(1)
end

local span, span_rem = pair(5)
local credit, credit_rem = pair(7)
local most, most_rem = pair(9)
local floor, floor_rem = pair(11)

local base, base_rem = now, 0
if used and not absurd then
  if not ours then return answer(2, its_n, its_p, its_unit) end
  base, base_rem = tat, tat_rem
end
local far = horizon(n, tonumber(p_word))
if less(base, base_rem, floor, floor_rem) and floor - now <= far then
  base, base_rem = floor, floor_rem
end

local first, first_rem = minus(base, base_rem, credit, credit_rem)
local wait, wait_rem = minus(first, first_rem, now, 0)
if most >= 0 and less(most, most_rem, wait, wait_rem) then return answer(0, wait, wait_rem) end

local us, rem = base + span, base_rem + span_rem
if rem >= n then us, rem = us + 1, rem - n end
if us - now > far then return answer(3) end
local kept = keep(us, rem)
if kept.err then return kept end
return answer(1, now, base, base_rem, absurd and 1 or 0)
