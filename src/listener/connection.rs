//! One connection of a client, with its deadlines. Bytes alone do not show when a request is being answered, so the
//! application reports that through [`Activity`].

use super::places::Place;
use super::{HEAD_TIME, IDLE_TIME, IDLE_TIME_CROWDED, WRITE_PACE, WRITE_TIME};
use crate::metrics::By;
use actix_web::Error;
use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use pin_project_lite::pin_project;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::cell::Cell;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// A connection that carries HTTP.
pub(super) type Socket = Either<Connection, Box<TlsStream<Connection>>>;

/// actix-http closes an idle connection cleanly. After this much longer, we close those that it does not consider idle.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Activity {
    begun: Cell<u64>,
    being_answered: Cell<u64>,
}

/// The activity of this connection.
pub(super) fn activity(socket: &Socket) -> Rc<Activity> {
    let connection = match socket {
        Either::Left(connection) => connection,
        Either::Right(tls) => tls.get_ref().0,
    };
    Rc::clone(&connection.activity)
}

/// A request that is being answered, until this is dropped.
struct BeingAnswered(Rc<Activity>);

impl BeingAnswered {
    fn begin(activity: &Rc<Activity>) -> Self {
        activity.begun.set(activity.begun.get() + 1);
        activity.being_answered.set(activity.being_answered.get() + 1);
        Self(Rc::clone(activity))
    }
}

impl Drop for BeingAnswered {
    fn drop(&mut self) {
        self.0.being_answered.set(self.0.being_answered.get() - 1);
    }
}

pin_project! {
    /// A body that keeps its request counted as being answered.
    struct Body<B> {
        #[pin]
        body: B,
        being_answered: Option<BeingAnswered>,
    }
}

impl<B: MessageBody> MessageBody for Body<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.project().body.poll_next(cx)
    }
}

/// Reports to the connection the beginning and the end of each request's answer.
pub async fn answering(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let being_answered = request.conn_data::<Rc<Activity>>().map(BeingAnswered::begin);
    let response = next.call(request).await?;
    Ok(response.map_body(|_, body| Body { body, being_answered }))
}

/// What the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    /// The first head. actix-http has a deadline for it.
    FirstHead,
    /// The application's answer.
    Answer,
    /// The next request, until the deadline.
    Request(Instant),
    /// The rest of a head, until the deadline.
    Head(Instant),
}

/// A socket with deadlines for reads and writes.
pub(super) struct Connection {
    socket: TcpStream,
    activity: Rc<Activity>,
    /// How many requests had begun at the last check.
    begun: u64,
    awaits: Awaits,
    /// The client must read before this time; none if no write is blocked.
    write_by: Option<Instant>,
    /// Fires at the next deadline or earlier.
    alarm: Pin<Box<Sleep>>,
    place: Place,
    open: Gauge,
    ended: By<Counter>,
}

impl Connection {
    pub fn new(socket: TcpStream, place: Place, open: Gauge, ended: By<Counter>) -> Self {
        open.inc();
        Self {
            socket,
            activity: Rc::default(),
            begun: 0,
            awaits: Awaits::FirstHead,
            write_by: None,
            alarm: Box::pin(sleep_until(Instant::now() + IDLE_TIME)),
            place,
            open,
            ended,
        }
    }

    /// Updates what the connection waits for.
    fn follow(&mut self) {
        let begun = self.activity.begun.get();
        if self.activity.being_answered.get() > 0 {
            self.awaits = Awaits::Answer;
        } else if self.awaits == Awaits::Answer || begun != self.begun {
            self.await_request();
        }
        self.begun = begun;
    }

    /// The client's time to begin a request starts now.
    fn await_request(&mut self) {
        let idle = if self.place.is_crowded() {
            IDLE_TIME_CROWDED
        } else {
            IDLE_TIME + IDLE_GRACE
        };
        self.awaits = Awaits::Request(Instant::now() + idle);
    }

    /// Notes that bytes have arrived.
    fn has_read(&mut self) {
        self.follow();
        if let Awaits::Request(_) = self.awaits {
            self.awaits = Awaits::Head(Instant::now() + HEAD_TIME);
        }
    }

    /// Notes that bytes were written.
    fn has_written(&mut self, bytes: usize) {
        if let Some(by) = self.write_by {
            let earned = Duration::from_millis(1000 * u64::try_from(bytes).unwrap_or(u64::MAX / 1000) / WRITE_PACE);
            self.write_by = Some((by + earned).min(Instant::now() + WRITE_TIME));
        }
    }

    /// Wakes the task at the next deadline. An error says that a deadline has passed.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.follow();
        let read_by = match self.awaits {
            Awaits::FirstHead | Awaits::Answer => None,
            Awaits::Request(by) | Awaits::Head(by) => Some(by),
        };
        // A client that still reads an answer need not send its next request yet.
        let Some(by) = self.write_by.or(read_by) else {
            return Ok(());
        };
        if by < self.alarm.deadline() {
            self.alarm.as_mut().reset(by);
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= by {
                let is_idle = self.write_by.is_none() && matches!(self.awaits, Awaits::Request(_));
                self.ended.of([if is_idle { "idle" } else { "slow" }]).inc();
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.alarm.as_mut().reset(by);
        }
        Ok(())
    }

    /// Notes the outcome of a write. A blocked write gives the client a deadline to read.
    fn written(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(Ok(bytes)) => self.has_written(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.write_by.get_or_insert_with(|| Instant::now() + WRITE_TIME);
                self.keep_time(cx)?;
            }
        }
        outcome
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let outcome = ready!(Pin::new(&mut self.socket).poll_read(cx, into));
        if into.filled().len() > before {
            self.has_read();
        }
        Poll::Ready(outcome)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A flush means that all bytes are written: actix-http and rustls flush after their last write, and after each
    /// poll.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_by.take().is_some() && matches!(self.awaits, Awaits::Request(_) | Awaits::Head(_)) {
            self.await_request();
        }
        self.keep_time(cx)?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
