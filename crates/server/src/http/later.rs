//! An answer that takes long. Whoever waits for it keeps what its answer needs, and nothing of the way by which it was asked for: with
//! ten thousand who wait, the way would be most of what they hold.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// What a door answers with instead of an answer. Extensions are shared and cloned, this is taken once.
#[derive(Clone)]
struct Later(Arc<Mutex<Option<BoxFuture<'static, Response>>>>);

/// An answer that is there when `answer` is. Until whoever serves the connection has [taken](taken) it, nobody waits for it.
pub(crate) fn later(answer: impl Future<Output = Response> + Send + 'static) -> Response {
    let mut promise = ().into_response();
    promise.extensions_mut().insert(Later(Arc::new(Mutex::new(Some(answer.boxed())))));
    promise
}

/// What is to be waited for, if that is what somebody was answered with.
pub(crate) fn taken(promise: &mut Response) -> Option<BoxFuture<'static, Response>> {
    let Later(answer) = promise.extensions_mut().remove()?;
    answer.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;
    use futures::FutureExt as _;

    use super::{later, taken};

    #[test]
    fn what_is_promised_is_taken_once_and_an_answer_is_no_promise() {
        let mut promise = later(ready(StatusCode::NO_CONTENT.into_response()));
        let answer = taken(&mut promise).expect("it is promised");
        assert_eq!(answer.now_or_never().expect("it is there").status(), StatusCode::NO_CONTENT);
        assert!(taken(&mut promise).is_none());
        assert!(taken(&mut StatusCode::OK.into_response()).is_none());
    }
}
