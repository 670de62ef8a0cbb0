//! Attempts to connect that don't wait for one another.
//!
//! Where packets are dropped, the kernel asks again after 1 s, then 2, then 4: an attempt that began
//! before the way was open again may end seconds after it. A new one ends at once.

use std::time::Duration;

use futures::{StreamExt as _, stream::FuturesUnordered};

/// How long an attempt is alone.
const NEXT_AFTER: Duration = Duration::from_millis(500);

/// Attempts under way at a time: on a server that is only slow each is one more handshake.
const MOST: usize = 4;

/// Makes one attempt, and another each half second while none has ended, but not more than [`MOST`] at
/// a time; the first that ends decides. An attempt must end by itself.
pub(super) async fn first_to_end<T, F: Future<Output = T>>(attempt: impl Fn() -> F) -> T {
    let mut under_way = FuturesUnordered::new();
    loop {
        if under_way.len() < MOST {
            under_way.push(attempt());
        }
        if let Ok(Some(ended)) = tokio::time::timeout(NEXT_AFTER, under_way.next()).await {
            return ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_holds_none_up() {
        let attempts = Cell::new(0);
        let began = tokio::time::Instant::now();
        let ended = first_to_end(|| {
            attempts.set(attempts.get() + 1);
            let number = attempts.get();
            async move {
                // The way opens after 1.2 s.
                let lasts = if number < 4 { Duration::from_secs(60) } else { Duration::from_millis(1) };
                tokio::time::sleep(lasts).await;
                number
            }
        });
        assert_eq!(ended.await, 4);
        assert_eq!(began.elapsed(), 3 * NEXT_AFTER + Duration::from_millis(1));
    }
}
