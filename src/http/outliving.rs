//! A flow outlives its request. While the request waits, it polls the flow, which needs no task. If the client hangs up,
//! or the wait is over, the flow goes on in a task of its own until its time ends. A crash ends it at any step.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument as _;

/// The output of a flow, or the panic that ended it.
type Ended<T> = Result<T, Box<dyn Any + Send>>;

pub(super) struct Outliving<T: Send + 'static> {
    /// None once it has ended.
    flow: Option<BoxFuture<'static, Ended<T>>>,
    until: Instant,
}

impl<T: Send + 'static> Outliving<T> {
    pub(super) fn new(flow: impl Future<Output = T> + Send + 'static, until: Instant) -> Self {
        // Shared values stay whole across a panic, as in `super::request_id`.
        let flow = AssertUnwindSafe(flow).catch_unwind().boxed();
        Self {
            flow: Some(flow),
            until,
        }
    }
}

impl<T: Send + 'static> Future for Outliving<T> {
    type Output = Ended<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended<T>> {
        let Some(flow) = &mut self.flow else {
            return Poll::Pending;
        };
        let ended = ready!(flow.as_mut().poll(cx));
        self.flow = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        let Some(flow) = self.flow.take() else { return };
        // Without a runtime, the process ends.
        if let Ok(runtime) = Handle::try_current() {
            // One type for the tasks of all flows: the compiler makes much code for each type.
            let flow = flow.map(drop).boxed();
            // With the request's span, the log lines of the task belong to the request.
            runtime.spawn(timeout_at(self.until, flow).in_current_span());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_flow_goes_on_after_its_request_until_its_time_ends() {
        for (more, ends) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
            let (go, gone) = oneshot::channel::<()>();
            let (done, was_done) = oneshot::channel();
            let flow = async move {
                let _gone = gone.await;
                let _heard = done.send(());
            };
            let mut flow = Outliving::new(flow, Instant::now() + more);
            assert!((&mut flow).now_or_never().is_none(), "it waits");
            drop(flow);
            if ends {
                go.send(()).unwrap();
                was_done.await.unwrap();
            } else {
                assert!(was_done.await.is_err());
                drop(go);
            }
        }
    }
}
