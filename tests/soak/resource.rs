//! The resource that the locks protect. It decides about each write when the write arrives.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use crate::history_writer::{HistoryWriter, now};

/// Whether the resource checks fences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fences {
    Checked,
    Ignored,
}

/// Serves the resource at this path until the process ends.
pub(crate) fn serve(path: &Path, history: HistoryWriter, fences: Fences) {
    let listener = UnixListener::bind(path).expect("the path is free");
    let newest = Arc::new(Mutex::new((HashMap::new(), history)));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let newest = Arc::clone(&newest);
            thread::spawn(move || answer(&client, &newest, fences));
        }
    });
}

fn answer(
    client: &UnixStream,
    newest: &Mutex<(HashMap<String, u64>, HistoryWriter)>,
    fences: Fences,
) {
    let mut client_says = BufReader::new(client);
    loop {
        let mut line = String::new();
        let read = client_says.read_line(&mut line);
        // The partial line of a killed client is no write.
        let Some(line) = line.strip_suffix('\n').filter(|_| read.is_ok()) else {
            return;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let [attempt, name, fence] = words[..] else {
            panic!("not a write: {line:?}")
        };
        let number: u64 = fence.parse().expect("a fence");
        let reply = {
            let mut newest = newest.lock().unwrap();
            let (seen, history) = &mut *newest;
            let seen = seen.entry(name.to_owned()).or_default();
            let accepted = fences == Fences::Ignored || number >= *seen;
            *seen = number.max(*seen);
            let reply = if accepted { "accepted" } else { "refused" };
            // Log while still holding the mutex, so that the file has the order of the decisions.
            history.log_at(
                now(),
                format_args!("write {attempt} {name} {fence} {reply}"),
            );
            reply
        };
        // A killed client does not read the reply, so the error is ignored.
        let _ = writeln!(&*client, "{reply}");
    }
}

/// A worker's connection to the resource.
pub(crate) struct Resource {
    stream: BufReader<UnixStream>,
}

impl Resource {
    pub(crate) fn connect(path: &str) -> Resource {
        Resource {
            stream: BufReader::new(UnixStream::connect(path).expect("the resource is there")),
        }
    }

    pub(crate) fn write(&mut self, attempt: &str, name: &str, fence: u64) {
        let line = format!("{attempt} {name} {fence}\n");
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .expect("the resource accepts the write");
        let mut reply = String::new();
        self.stream
            .read_line(&mut reply)
            .expect("the resource answers");
    }
}
