//! An API that says what a test wants: real TCP, one thread, and a memory of what it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wire::problem::{Problem, ProblemCode};

/// What it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) body: String,
}

/// What it answers.
#[derive(Clone)]
pub(crate) enum Says {
    /// A status and a body.
    Json(u16, Value),
    /// A problem.
    Problem(Box<Problem>),
    /// Nothing: the connection is closed.
    Nothing,
}

impl Says {
    pub(crate) fn problem(code: ProblemCode, detail: &str) -> Says {
        Says::Problem(Box::new(Problem::new(code, detail)))
    }
}

/// A running one.
pub(crate) struct Stub {
    pub(crate) api: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Stub {
    /// One that answers with what `answer` makes of the request and how many there were before.
    pub(crate) fn answering(answer: impl Fn(&Asked, usize) -> Says + Send + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let api = format!("http://{}", listener.local_addr().expect("it has one"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let memory = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else { continue };
                let mut memory = memory.lock().expect("nobody panicked");
                let says = answer(&request, memory.len());
                memory.push(request);
                drop(memory);
                say(stream, &says);
            }
        });
        Stub { api, asked }
    }

    /// One that says the same to everybody.
    pub(crate) fn always(says: Says) -> Stub {
        Stub::answering(move |_, _| says.clone())
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("nobody panicked").clone()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut key, mut token, mut length) = (None, None, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "idempotency-key" => key = Some(value.to_owned()),
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, key, token, body: String::from_utf8(body).ok()? })
}

fn say(mut stream: TcpStream, says: &Says) {
    let (status, kind, body) = match says {
        Says::Json(status, body) => (*status, "application/json", body.clone()),
        Says::Problem(problem) => {
            let body = serde_json::to_value(problem).expect("it is JSON");
            (problem.status, "application/problem+json", body)
        }
        Says::Nothing => return,
    };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    // Whoever asked may have gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nretry-after: 0\r\nconnection: close\r\n\r\n{body}"
    );
}

/// A page with these on it.
pub(crate) fn page(items: Vec<Value>) -> Value {
    json!({ "items": items, "next_cursor": null })
}

/// An allocation in that status.
pub(crate) fn allocation(id: &str, name: &str, status: &str) -> Value {
    json!({
        "id": id, "name": name, "project_id": "0198c0de-0000-7000-8000-000000000001",
        "owner_id": null, "status": status, "status_at": "2026-01-01T00:00:00Z",
        "status_reason": null, "status_text": "As it is.", "sku": "h100.slice", "shape": "gpu_slice",
        "gpus": 2, "region": "eu-1", "image": "ubuntu", "node": null, "slots": [], "access": null,
        "price_micros_per_gpu_second": 831, "currency": "USD", "created_at": "2026-01-01T00:00:00Z",
        "active_at": null, "release_requested_at": null, "ended_at": null, "seq": 1,
        "allowed_actions": ["release"]
    })
}

/// A timeline of an allocation in that status, with one step that failed if it did.
pub(crate) fn timeline(id: &str, status: &str) -> Value {
    let failed = status.ends_with("failed");
    json!({
        "allocation_id": id, "status": status, "started_at": "2026-01-01T00:00:00Z", "ended_at": null,
        "total_seconds": 7,
        "items": [
            {
                "id": "state:1", "kind": "allocation_state", "name": "requested", "status": "succeeded",
                "started_at": "2026-01-01T00:00:00Z", "completed_at": "2026-01-01T00:00:00Z",
                "duration_seconds": 0, "summary": "The GPUs were asked for."
            },
            {
                "id": "task:0198c0de-0000-7000-8000-00000000000f", "within": "state:1",
                "kind": "node_task", "name": "slice.vm_provision",
                "status": if failed { "failed" } else { "running" },
                "started_at": "2026-01-01T00:00:00Z", "completed_at": null, "duration_seconds": 7,
                "summary": "Creating GPU slice VM",
                "task_id": "0198c0de-0000-7000-8000-00000000000f",
                "reason": failed.then_some("ssh_not_ready"),
                "advice": "Inspect the cloud-init log.",
                "phases": [{
                    "name": "image_prepared", "status": "succeeded",
                    "started_at": "2026-01-01T00:00:00Z", "completed_at": "2026-01-01T00:00:03Z"
                }]
            }
        ]
    })
}
