//! Connections: accepted up to a number, served with timeouts, and ended in good order.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::App;
use crate::routes::router;

/// Pause after a failed accept: mostly too many files are open, and waiting helps.
const PAUSE: Duration = Duration::from_millis(50);

/// Time that answers get to say that they were cut off.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves connections until `stop` is ready. Then no more requests are taken; those that run and wait
/// get the grace of the settings, and are cancelled after it. The engine is closed when this returns.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(app.settings.max_connections));
    let service = TowerToHyperService::new(router(Arc::clone(&app)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(app.settings.header_timeout);
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = &mut stop => break,
        };
        let Some((socket, place)) = accepted else { continue };
        // Deltas are small and are to be seen at once.
        let _ = socket.set_nodelay(true);
        let io = Patient::new(socket, app.settings.write_timeout);
        let connection = http.serve_connection(TokioIo::new(io), service.clone());
        let connection = graceful.watch(connection);
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            app.connections.fetch_add(1, Ordering::Relaxed);
            // A client that breaks the protocol, or leaves, concerns nobody else.
            let _ = connection.await;
            app.connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    drop(listener);
    app.closing.store(true, Ordering::Relaxed);
    app.engine.close();
    let mut ended = pin!(graceful.shutdown());
    if timeout(app.settings.grace, &mut ended).await.is_err() {
        app.engine.cancel_all();
        let _ = timeout(FAREWELL, ended).await;
    }
}

/// The next connection, as soon as there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((socket, _)) => Some((socket, place)),
        Err(_) => {
            sleep(PAUSE).await;
            None
        }
    }
}

/// A socket that fails when nothing of what is written goes out for a while.
struct Patient {
    socket: TcpStream,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(socket: TcpStream, patience: Duration) -> Self {
        Self { socket, patience, waiting: None }
    }

    /// Lets a result pass; for one that is not ready, fails when it was not for too long.
    fn check<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let end = Instant::now() + self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.check(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.check(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
