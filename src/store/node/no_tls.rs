//! Stands in for `tls` where the feature is off: no socket has TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::stream::{IoDeadline, Reads, Stream};
use crate::store::{Address, StoreFault, TlsSettings};

/// There is none.
pub(super) enum NoTls {}

pub(super) type TlsWriter = NoTls;
pub(super) type TlsReader = NoTls;

/// Never called: [`TlsSettings::check`] refuses the settings.
pub(super) fn start_tls(
    _stream: &Arc<Stream>,
    _peer: Option<SocketAddr>,
    _settings: &TlsSettings,
    _address: &Address,
    _timeout: Duration,
) -> Result<(TlsWriter, TlsReader), StoreFault> {
    Err(StoreFault::Unfit {
        what: "tls",
        message: "the feature `tls` of this crate, which TLS needs".to_owned(),
    })
}

impl NoTls {
    pub(super) fn write_all(
        &mut self,
        _bytes: &[u8],
        _stream: &Stream,
        _deadline: &mut IoDeadline,
    ) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn read(&mut self, _buffer: &mut [u8], _reads: &mut Reads<'_>) -> io::Result<usize> {
        match *self {}
    }
}
