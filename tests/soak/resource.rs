//! What the locks protect: something on its own, that decides about each write when it arrives.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use crate::record::{Record, now};

/// Whether it looks at fences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fences {
    Checked,
    Ignored,
}

/// Serves the resource at this path until the process ends.
pub(crate) fn serve(path: &Path, record: Record, fences: Fences) {
    let listener = UnixListener::bind(path).expect("a path of our own");
    let newest = Arc::new(Mutex::new((HashMap::new(), record)));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let newest = Arc::clone(&newest);
            thread::spawn(move || answer(&client, &newest, fences));
        }
    });
}

fn answer(client: &UnixStream, newest: &Mutex<(HashMap<String, u64>, Record)>, fences: Fences) {
    let mut client_says = BufReader::new(client);
    loop {
        let mut line = String::new();
        let read = client_says.read_line(&mut line);
        // A client that was killed over a line has not written.
        let Some(whole) = line.strip_suffix('\n').filter(|_| read.is_ok()) else {
            return;
        };
        let words: Vec<&str> = whole.split(' ').collect();
        let [attempt, name, fence] = words[..] else {
            panic!("not a write: {line:?}")
        };
        let number: u64 = fence.parse().expect("a fence");
        let said = {
            let mut newest = newest.lock().unwrap();
            let (seen, record) = &mut *newest;
            let seen = seen.entry(name.to_owned()).or_default();
            let accepted = fences == Fences::Ignored || number >= *seen;
            *seen = number.max(*seen);
            let said = if accepted { "accepted" } else { "refused" };
            // Written before anybody else is let in, so that the file has the order of the
            // decisions.
            record.at(now(), format_args!("write {attempt} {name} {fence} {said}"));
            said
        };
        // A client that was killed does not hear it.
        let _ = writeln!(&*client, "{said}");
    }
}

/// A worker's way to the resource.
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
            .expect("the resource listens");
        let mut said = String::new();
        self.stream
            .read_line(&mut said)
            .expect("the resource answers");
    }
}
