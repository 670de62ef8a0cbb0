-- Lets wrk send requests that are made before it begins: building one costs a table access, or for a
-- body with an id of its own two joined strings.
--
-- Arguments: FILE METHOD PATH RUN
--   FILE    a request a line: what stands for %s in PATH, a tab, the body. An @ in the body becomes
--           an id of 16 digits that no other request has
--   METHOD  of the request
--   PATH    as in "/api/video/%s/heartbeat"
--   RUN     a number of three digits that no other run with the same servers has
-- Prints one line for the program that reads it: "RESULT ", then JSON.

local started = 0

function setup(thread)
    thread:set("number", started)
    started = started + 1
end

function init(arguments)
    local file, method, path, run = arguments[1], arguments[2], arguments[3], arguments[4]
    run_number, next_id = run, 0
    heads, tails = {}, {}
    for line in io.lines(file) do
        local filling, body = line:match("^([^\t]*)\t?(.*)$")
        local length = #body
        if body:find("@", 1, true) then length = length + 15 end
        local head = method .. " " .. string.format(path, filling) .. " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n"
        if method == "POST" then
            head = head .. "Content-Type: application/json\r\nContent-Length: " .. length .. "\r\n"
        end
        local before, after = body:match("^([^@]*)@(.*)$")
        heads[#heads + 1] = head .. "\r\n" .. (before or body)
        tails[#tails + 1] = after
    end
    -- Every thread begins elsewhere, or they would all ask about the same video at the same time.
    place = math.floor(#heads * number / 8) % #heads
end

function request()
    place = place + 1
    if place > #heads then place = 1 end
    local tail = tails[place]
    if tail == nil then return heads[place] end
    next_id = next_id + 1
    return heads[place] .. run_number .. string.format("%03d%010d", number, next_id) .. tail
end

function done(summary, latency)
    local errors = summary.errors
    print(string.format(
        'RESULT {"requests":%d,"micros":%d,"p50":%d,"p90":%d,"p99":%d,"p999":%d,"max":%d,' ..
            '"refused":%d,"failed":%d,"late":%d}',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(90),
        latency:percentile(99), latency:percentile(99.9), latency.max,
        errors.status, errors.connect + errors.read + errors.write, errors.timeout
    ))
end
