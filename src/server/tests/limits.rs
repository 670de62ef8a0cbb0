//! No peer holds more than its share, however it behaves: so many connections, so long, so many bytes.

use super::*;

#[track_caller]
fn is_problem(answer: &str, status: u16, code: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for part in ["content-type: application/problem+json\r\n", "date: ", &format!("\"code\":\"{code}\"")] {
        assert!(answer.contains(part), "no {part} in {answer}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_told_so_in_the_way_of_all_errors_and_the_connection_is_closed() {
    let running = Running::start(LONG).await;
    let many = "h: 1\r\n".repeat(101);
    for (request, status, code) in [
        ("GARBAGE\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400, "malformed_request"),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431, "headers_too_large"),
        (format!("GET / HTTP/1.1\r\ncookie: {}", "c".repeat(40_000)), 431, "headers_too_large"),
        // More than there is to answer, still on its way: the answer arrives all the same.
        (format!("GET /{}", "u".repeat(300_000)), 431, "headers_too_large"),
    ] {
        let mut stream = running.connect().await;
        send(&mut stream, &request).await;
        let answer = read_all(&mut stream).await;
        is_problem(&answer, status, code);
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn headers_of_thirty_kilobytes_are_read() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    send(&mut stream, &format!("GET /quick HTTP/1.1\r\ncookie: {}\r\n\r\n", "c".repeat(30_000))).await;
    expect(&mut stream, "quick").await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_in_holds_its_connection_for_a_bounded_time() {
    let running = Running::start(LONG).await;
    for before in ["", "GET /quick HTTP/1.1\r\nhost: test\r\n\r\n"] {
        let mut stream = running.connect().await;
        if !before.is_empty() {
            send(&mut stream, before).await;
            expect(&mut stream, "quick").await;
        }
        let began = Instant::now();
        let (mut read, mut write) = stream.split();
        let trickle = async {
            for byte in "GET / HTTP/1.1\r\ncookie: ".bytes().chain(std::iter::repeat(b'c')) {
                if write.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let mut answer = Vec::new();
        tokio::select! {
            _ = read.read_to_end(&mut answer) => {}
            () = trickle => {}
        }
        is_problem(&String::from_utf8_lossy(&answer), 408, "request_timeout");
        let seconds = began.elapsed().as_secs();
        assert!((10..=21).contains(&seconds), "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_came_late_leaves_the_connection_as_good_as_any() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    send(&mut stream, "POST /quick HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\n").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    send(&mut stream, "late").await;
    expect(&mut stream, "late").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    ask(&mut stream, "/quick").await;
    expect(&mut stream, "quick").await;
}

#[tokio::test]
async fn requests_in_one_packet_are_answered_in_their_order() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    let requests: Vec<_> =
        (0..200).map(|number| format!("GET /n{number} HTTP/1.1\r\nhost: test\r\n\r\n")).collect();
    send(&mut stream, &requests.concat()).await;
    let answers = expect(&mut stream, "/n199").await;
    let places: Vec<_> = (0..200).map(|number| answers.find(&format!("/n{number}"))).collect();
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}");
}

#[tokio::test]
async fn garbage_behind_requests_is_refused_after_their_answers() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    send(&mut stream, "GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\nGARBAGE\r\n\r\n").await;
    let answers = read_all(&mut stream).await;
    let (first, second) = (answers.find("/one").unwrap(), answers.find("/two").unwrap());
    let third = answers.find("malformed_request").unwrap();
    assert!(first < second && second < third, "{answers}");
}

#[tokio::test(start_paused = true)]
async fn who_asks_on_and_on_and_never_reads_is_cut_off_and_costs_a_bounded_number_of_answers() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    let began = Instant::now();
    let request = b"GET /large HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1_000);
    let sent = async { while stream.write_all(&request).await.is_ok() {} };
    sent.await;
    let seconds = began.elapsed().as_secs();
    assert!((30..=41).contains(&seconds), "{seconds}");
    // What the sockets on both sides hold, and one that doesn't fit.
    let made = running.large.load(Ordering::Relaxed);
    assert!((1..=64).contains(&made), "{made} answers of a megabyte");
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_but_reads_is_served() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    send(&mut stream, &"GET /large HTTP/1.1\r\nhost: test\r\n\r\n".repeat(40)).await;
    let mut left = 40 * LARGE;
    let mut piece = vec![0; LARGE];
    while left > 0 {
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "cut off with {left} bytes left");
        // The headers come on top.
        left = left.saturating_sub(count);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn an_answer_given_before_the_body_was_sent_arrives() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    send(&mut stream, "POST /deaf HTTP/1.1\r\nhost: test\r\ncontent-length: 10000000\r\n\r\n").await;
    send(&mut stream, &"b".repeat(500_000)).await;
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("too much"), "{answer}");
}

#[tokio::test]
async fn an_answer_given_before_the_body_came_is_not_lost_to_the_body_that_comes_after_all() {
    let gate = Arc::new(Gate::new(Duration::from_millis(20)));
    let patient = Running::start(LONG).await;
    let busy = Running::behind(Door { gate: Some(gate.clone()), ..door() }, LONG).await;
    let full = Running::behind(Door { connections: 0, ..door() }, LONG).await;
    for _ in 0..1_000 {
        gate.observe(Duration::from_secs(1), Duration::from_millis(20));
    }
    // After one that is let in, the next is refused.
    while !gate.admits() {}
    for (running, path, status) in [
        (&patient, "/deaf", 413),
        (&patient, "/slow", 405),
        (&patient, "/no/where", 404),
        (&busy, "/quick", 503),
        (&full, "/quick", 503),
    ] {
        for length in ["content-length: 60000", "transfer-encoding: chunked"] {
            let mut stream = running.connect().await;
            send(&mut stream, &format!("POST {path} HTTP/1.1\r\nhost: test\r\n{length}\r\n\r\n")).await;
            // With nothing left to read, what it sends arrives where the connection ends.
            let answer = read_all(&mut stream).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
            // Nobody resets it: the second piece would fail.
            for _ in 0..6 {
                send(&mut stream, &"b".repeat(10_000)).await;
            }
            while !gate.admits() {}
        }
    }
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_probes_are_answered() {
    let running = Running::behind(Door { connections: 2, ..door() }, LONG).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = running.connect().await;
        ask(&mut stream, "/quick").await;
        expect(&mut stream, "quick").await;
        kept.push(stream);
    }
    let mut third = running.connect().await;
    send(&mut third, "POST /quick HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbeat").await;
    let answer = read_all(&mut third).await;
    is_problem(&answer, 503, "overloaded");
    assert!(answer.contains("retry-after: ") && answer.contains("connection: close\r\n"), "{answer}");

    let mut probe = running.connect().await;
    ask(&mut probe, "/livez").await;
    let answer = read_all(&mut probe).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("alive"), "{answer}");

    // Those that are there aren't concerned, and where one goes another may come.
    ask(&mut kept[0], "/quick").await;
    expect(&mut kept[0], "quick").await;
    drop(kept);
    loop {
        let mut next = running.connect().await;
        ask(&mut next, "/quick").await;
        if expect(&mut next, "\r\n\r\n").await.starts_with("HTTP/1.1 200 ") {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn far_too_many_are_closed_at_once_and_those_that_say_nothing_soon() {
    let running = Running::behind(Door { connections: 1, ..door() }, LONG).await;
    let mut streams = Vec::new();
    for _ in 0..=EXCESS {
        streams.push(running.connect().await);
    }
    let began = Instant::now();
    let mut last = running.connect().await;
    assert_eq!(read_all(&mut last).await, "");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    for stream in &mut streams[1..] {
        assert_eq!(read_all(stream).await, "");
    }
    assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn near_the_limit_an_idle_connection_makes_room() {
    let running = Running::behind(Door { connections: 16, ..door() }, LONG).await;
    let mut streams = Vec::new();
    for _ in 0..15 {
        let mut stream = running.connect().await;
        ask(&mut stream, "/quick").await;
        expect(&mut stream, "quick").await;
        streams.push(stream);
    }
    let began = Instant::now();
    assert_eq!(read_all(&mut streams[0]).await, "");
    let seconds = began.elapsed().as_secs();
    assert!((10..=20).contains(&seconds), "{seconds}");
    // With it the crowd is over, and the others may stay.
    tokio::time::sleep(Duration::from_secs(300)).await;
    for stream in &mut streams[1..] {
        ask(stream, "/quick").await;
        expect(stream, "quick").await;
    }
}

#[tokio::test]
async fn under_pressure_requests_are_refused_at_once_and_their_connections_kept() {
    let gate = Arc::new(Gate::new(Duration::from_millis(20)));
    let running = Running::behind(Door { gate: Some(gate.clone()), ..door() }, LONG).await;
    let mut stream = running.connect().await;
    let mut refused = async |path: &str, body: &str| {
        let mut refused = 0;
        for _ in 0..100 {
            let length = body.len();
            let request =
                format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}");
            let request = if body.is_empty() { request.replace("POST", "GET") } else { request };
            send(&mut stream, &request).await;
            let answer = expect(&mut stream, "\r\n\r\n").await;
            if answer.starts_with("HTTP/1.1 503 ") {
                is_problem(&expect_rest(answer, &mut stream).await, 503, "overloaded");
                refused += 1;
            } else {
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                expect_rest(answer, &mut stream).await;
            }
        }
        refused
    };
    assert_eq!(refused("/quick", "beat").await, 0);
    for _ in 0..1_000 {
        gate.observe(Duration::from_secs(1), Duration::from_millis(20));
    }
    assert!((94..=96).contains(&refused("/quick", "beat").await));
    assert_eq!(refused("/livez", "").await, 0);
    for _ in 0..1_000 {
        gate.observe(Duration::ZERO, Duration::from_millis(20));
    }
    assert_eq!(refused("/quick", "beat").await, 0);
}

/// Reads what is missing of an answer's body.
async fn expect_rest(answer: String, stream: &mut TcpStream) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut rest = vec![0; length.parse::<usize>().unwrap() - body.len()];
    stream.read_exact(&mut rest).await.unwrap();
    answer + &String::from_utf8(rest).unwrap()
}
