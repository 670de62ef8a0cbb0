//! The one layer around every route: body limit, prefetches, deadline, panics, metrics, the log of
//! failures.
//!
//! One layer and not six: each layer of axum costs a boxed clone of what it wraps and a boxed future,
//! for every heartbeat. It is hand-written so that a request which is answered at once needs no
//! timer and no allocation here.

use std::{
    any::Any,
    convert::Infallible,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    extract::{DefaultBodyLimit, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{Route, future::RouteFuture},
};
use tokio::time::Sleep;
use tower::{Layer, Service};

use super::{
    failures::FailureLog,
    meters::RouteMeter,
    problem::{ApiError, Failure},
};

/// Wraps one route.
#[derive(Clone)]
pub(super) struct Edge {
    shared: Arc<Shared>,
}

struct Shared {
    route: &'static str,
    /// Whether something is counted here that a prefetch must not count.
    is_counted: bool,
    body_limit: usize,
    timeout: Duration,
    meter: RouteMeter,
    failures: Arc<FailureLog>,
}

impl Edge {
    /// For `route`, as metrics and the log call it.
    pub(super) fn new(
        route: &'static str,
        body_limit: usize,
        timeout: Duration,
        failures: Arc<FailureLog>,
    ) -> Self {
        let is_counted = route.starts_with("/api/");
        let shared =
            Shared { route, is_counted, body_limit, timeout, meter: RouteMeter::new(route), failures };
        Self { shared: Arc::new(shared) }
    }
}

impl Layer<Route> for Edge {
    type Service = EdgeService;

    fn layer(&self, inner: Route) -> EdgeService {
        EdgeService { edge: self.clone(), inner }
    }
}

/// A route with the edge around it.
#[derive(Clone)]
pub(super) struct EdgeService {
    edge: Edge,
    inner: Route,
}

impl Service<Request> for EdgeService {
    type Response = Response;
    type Error = Infallible;
    type Future = EdgeFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, mut request: Request) -> EdgeFuture {
        let began = Instant::now();
        let mut route = None;
        if *request.method() != Method::POST {
            route = Some(self.inner.call(request));
        } else if !self.edge.shared.is_counted || !is_prefetch(request.headers()) {
            // Only a POST has its body read.
            DefaultBodyLimit::max(self.edge.shared.body_limit).apply(&mut request);
            route = Some(self.inner.call(request));
        }
        EdgeFuture { edge: self.edge.clone(), began, route, deadline: None }
    }
}

/// A page that a browser loads on suspicion plays nothing yet.
fn is_prefetch(headers: &HeaderMap) -> bool {
    const SEC_PURPOSE: HeaderName = HeaderName::from_static("sec-purpose");
    const PURPOSE: HeaderName = HeaderName::from_static("purpose");
    let says = |name| {
        let value = headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        value.windows(8).any(|part| part.eq_ignore_ascii_case(b"prefetch"))
    };
    says(SEC_PURPOSE) || says(PURPOSE)
}

/// The answer of a route, on its way.
pub(super) struct EdgeFuture {
    edge: Edge,
    began: Instant,
    /// `None` where nothing is to be done.
    route: Option<RouteFuture<Infallible>>,
    /// Made when the route first has to wait: most answers are there at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Future for EdgeFuture {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match &mut self.route {
            None => passed(),
            // What a panic leaves half done is dropped with its future, right after.
            Some(route) => match catch_unwind(AssertUnwindSafe(|| Pin::new(route).poll(context))) {
                Ok(Poll::Ready(Ok(response))) => response,
                Ok(Poll::Ready(Err(never))) => match never {},
                Ok(Poll::Pending) => ready!(self.wait(context)),
                Err(panic) => ApiError::Panicked(message_of(&*panic)).into_response(),
            },
        };
        Poll::Ready(Ok(self.edge.shared.finish(response, self.began)))
    }
}

impl EdgeFuture {
    /// Waits for the route at most so long.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let timeout = self.edge.shared.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(context).map(|()| ApiError::Timeout.into_response())
    }
}

fn passed() -> Response {
    (StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]).into_response()
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

impl Shared {
    fn finish(&self, mut response: Response, began: Instant) -> Response {
        let status = response.status();
        self.meter.answered(status, began.elapsed());
        if status.is_server_error()
            && let Some(failure) = response.extensions_mut().remove::<Failure>()
        {
            self.failures.log(self.route, &failure);
        }
        response
    }
}
