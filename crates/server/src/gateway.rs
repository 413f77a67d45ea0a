//! The node gateway: what agents say and ask, on a listener of its own. Who somebody is, is the certificate of the
//! connection. Whether it is good the database is asked for every request, for those that come together in one statement; a revoked one is
//! out at once, also in the middle of a wait.

mod duties;
mod enrolments;
mod met;
mod polls;

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use control::node::enrol::{self, AgentIdentity};
use control::node::heartbeat::{self, Collector};
use control::node::roll_call::{RollCall, roll_call};
use control::node::{dispatch, task};
use control::{Ctx, Error};
use domain::ids::NodeTaskId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::Ring;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::node::{
    Acknowledged, Certificate, Enrolment, Heartbeat, HeartbeatAnswer, PROTOCOL_HEADER, PhaseBatch,
    Renewal, TASKS_MAX, TaskBatch, TaskResult, WAIT_SECONDS, WAIT_SECONDS_MAX,
};
use wire::problem::ProblemCode;

use crate::http::later::later;
use crate::http::params::Id;
use crate::http::problem::Refusal;
use crate::http::{body, frame};
use crate::listen::{self, Remote};
use crate::tls::{AcceptAgents, Shown};
use crate::{Ending, Limits};
pub use duties::Duties;
use enrolments::Enrolments;
pub(crate) use met::Met;
use polls::Polls;

/// How long a wait lasts that begins when the gateway is ending already: not long, and not so short that agents would do nothing
/// but ask.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The version of the protocol that agents speak who do not say which.
const PROTOCOL_UNSAID: u16 = 1;

/// How long any request may take. Longer than the longest wait.
const WHOLE: Duration = Duration::from_secs(WAIT_SECONDS_MAX * 2);

/// How much of anything an agent may have: few requests at a time, and a connection for every agent of a large fleet.
pub fn limits() -> Limits {
    Limits {
        connections_max: 16_384,
        in_flight_max: 32_768,
        streams_max: 16,
        head_bytes_max: 16 * 1024,
        idle: Duration::from_secs(120),
        ..Limits::default()
    }
}

/// What the doors of the gateway stand on.
struct Gateway {
    ctx: Ctx,
    limits: Limits,
    heartbeats: Collector,
    roll_call: RollCall,
    enrolments: Arc<Enrolments>,
    polls: Polls,
    ending: Ending,
}

/// Serves agents on `listener` until it is `ending`. If nobody has said where agents reach it, it is where it listens.
///
/// # Errors
/// When it can't begin, or what has to run beside it has ended.
pub async fn serve(
    listener: TcpListener,
    ctx: Ctx,
    limits: Limits,
    ending: Ending,
) -> Result<(), Error> {
    let broken =
        |error: &dyn std::fmt::Display| Error::Broken(format!("the gateway can't begin: {error}"));
    let address = listener.local_addr().map_err(|error| broken(&error))?;
    ctx.keys.gateway_url.get_or_init(|| format!("https://{address}"));
    let accept = AcceptAgents::new(&ctx, &limits).map_err(|error| broken(&error))?;
    let (router, duties) = router(ctx, limits, ending.clone());
    let mut beside = JoinSet::new();
    beside.spawn(duties.run());
    let served = listen::serve(listener, router, accept, limits, ending.clone());
    tokio::select! {
        () = served => {}
        Some(ended) = beside.join_next(), if !ending.is_closing() => {
            let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
            return Err(Error::Broken(format!("what runs beside the gateway has ended{why}")));
        }
    }
    beside.shutdown().await;
    Ok(())
}

/// The doors, and what has to run for them.
pub fn router(ctx: Ctx, limits: Limits, ending: Ending) -> (Router, Duties) {
    // Every agent asks the same few things.
    let ctx = ctx.hot();
    let (heartbeats, flusher) = heartbeat::collector(&ctx);
    let (roll_call, caller) = roll_call(&ctx);
    let enrolments = Arc::new(Enrolments::new(limits.enrolments_per_peer_per_minute));
    let duties = Duties {
        ctx: ctx.clone(),
        flusher,
        caller,
        enrolments: Arc::clone(&enrolments),
        ending: ending.clone(),
    };
    let polls = Polls::default();
    let gateway = Gateway { ctx, limits, heartbeats, roll_call, enrolments, polls, ending };
    let router = Router::new()
        .route("/agent/v1/enroll", post(enrol))
        .route("/agent/v1/certificate", post(renew))
        .route("/agent/v1/heartbeat", post(beat))
        .route("/agent/v1/tasks/wait", get(wait))
        .route("/agent/v1/tasks/{id}/events", post(phases))
        .route("/agent/v1/tasks/{id}/result", post(finish))
        .with_state(Arc::new(gateway));
    (frame::around(router, &limits, Some(WHOLE)), duties)
}

/// The agent that asks, and was asked about just now. A door that takes this is closed to everybody else, before anything of the body
/// is read.
struct Agent(AgentIdentity);

impl FromRequestParts<Arc<Gateway>> for Agent {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Refusal> {
        let asking = Asking::of(parts)?;
        gateway.identify(&asking).await.map(Agent)
    }
}

/// Somebody who was asked about when they first spoke on this connection, and will be again by what is done for them.
struct Known {
    identity: AgentIdentity,
    certificate: [u8; 32],
}

impl FromRequestParts<Arc<Gateway>> for Known {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Refusal> {
        let asking = Asking::of(parts)?;
        let (_, identity) = gateway.meet(&asking).await?;
        Ok(Known { identity, certificate: asking.certificate })
    }
}

/// What somebody shows of themselves, and how they speak.
struct Asking {
    certificate: [u8; 32],
    met: Arc<OnceLock<Met>>,
    protocol: u16,
}

impl Asking {
    fn of(parts: &Parts) -> Result<Asking, Refusal> {
        let protocol = match parts.headers.get(PROTOCOL_HEADER) {
            None => PROTOCOL_UNSAID,
            Some(said) => {
                said.to_str().ok().and_then(|said| said.parse().ok()).ok_or_else(|| {
                    let detail = format!("The header {PROTOCOL_HEADER} must be a number.");
                    Refusal::new(ProblemCode::BadRequest, detail)
                })?
            }
        };
        let shown = parts.extensions.get::<Shown>();
        let Some((certificate, met)) =
            shown.and_then(|shown| Some((shown.certificate?, &shown.met)))
        else {
            let detail = "An agent shows its certificate. To get one, enrol.";
            return Err(Refusal::new(ProblemCode::Unauthenticated, detail));
        };
        Ok(Asking { certificate, met: Arc::clone(met), protocol })
    }
}

impl Gateway {
    /// Asks who it is, and whether it may speak.
    async fn identify(&self, asking: &Asking) -> Result<AgentIdentity, Refusal> {
        let identify = enrol::identify(&self.ctx, &asking.certificate, asking.protocol);
        // Whoever waits for work has room for what it waits for, and none for what it does in between.
        Ok(Box::pin(identify).await?)
    }

    /// The next tasks for the agent, in the words it asked for; none, if there are none. Who it is, is asked before anything of the
    /// database is held: whoever holds a connection must not wait for somebody who needs another.
    async fn claim(
        &self,
        asking: &Asking,
        known: Option<AgentIdentity>,
        most: Option<u16>,
    ) -> Result<Option<Response>, Refusal> {
        let identity = match known {
            Some(identity) => identity,
            None => self.identify(asking).await?,
        };
        let mut tasks = dispatch::claim(&self.ctx, &identity, most.unwrap_or(1)).await?;
        Ok(match most {
            Some(_) if tasks.is_empty() => None,
            Some(_) => Some(Json(TaskBatch { tasks }).into_response()),
            None => tasks.pop().map(|task| Json(task).into_response()),
        })
    }

    /// Who it is. Only the first on a connection is asked about here, so whoever takes this asks whether it may still speak.
    async fn meet<'a>(&self, asking: &'a Asking) -> Result<(&'a Met, AgentIdentity), Refusal> {
        if let Some(met) = asking.met.get() {
            enrol::understood(asking.protocol)?;
            return Ok((met, AgentIdentity { protocol: asking.protocol, ..met.identity }));
        }
        let identity = self.identify(asking).await?;
        Ok((asking.met.get_or_init(|| Met::new(identity, &self.ctx.wake)), identity))
    }
}

/// What an agent says.
struct Said<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Gateway>> for Said<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Refusal> {
        body::read(request, &gateway.limits).await.map(|body| Said(body.value))
    }
}

/// Somebody who has not been here too often lately.
struct Admitted;

impl FromRequestParts<Arc<Gateway>> for Admitted {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Refusal> {
        let from = parts.extensions.get::<Remote>().map(|remote| remote.0.ip());
        gateway.enrolments.admit(from).map(|()| Admitted)
    }
}

async fn enrol(
    State(gateway): State<Arc<Gateway>>,
    _admitted: Admitted,
    Said(enrolment): Said<Enrolment>,
) -> Result<Json<Certificate>, Refusal> {
    Ok(Json(enrol::enrol(&gateway.ctx, &enrolment).await?))
}

async fn renew(
    State(gateway): State<Arc<Gateway>>,
    Agent(identity): Agent,
    Said(renewal): Said<Renewal>,
) -> Result<Json<Certificate>, Refusal> {
    Ok(Json(enrol::renew(&gateway.ctx, &identity, &renewal).await?))
}

async fn beat(
    State(gateway): State<Arc<Gateway>>,
    Known { identity, certificate }: Known,
    Said(heartbeat): Said<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>, Refusal> {
    Ok(Json(gateway.heartbeats.beat(&identity, certificate, &heartbeat).await?))
}

async fn phases(
    State(gateway): State<Arc<Gateway>>,
    Agent(identity): Agent,
    Id(id): Id,
    Said(batch): Said<PhaseBatch>,
) -> Result<Json<Acknowledged>, Refusal> {
    Ok(Json(task::phases(&gateway.ctx, &identity, NodeTaskId(id), &batch).await?))
}

async fn finish(
    State(gateway): State<Arc<Gateway>>,
    Agent(identity): Agent,
    Id(id): Id,
    Said(result): Said<TaskResult>,
) -> Result<Json<Acknowledged>, Refusal> {
    Ok(Json(task::finish(&gateway.ctx, &identity, NodeTaskId(id), &result).await?))
}

/// How many tasks an agent takes at once, and how long it waits for them.
#[derive(Deserialize)]
struct Wanted {
    most: Option<u16>,
    seconds: Option<u64>,
}

impl Wanted {
    fn of(parts: &Parts) -> Result<Wanted, Refusal> {
        match Query::<Wanted>::try_from_uri(&parts.uri) {
            Ok(Query(wanted)) if wanted.most != Some(0) && wanted.seconds != Some(0) => Ok(wanted),
            _ => {
                let detail = "The parameter most says how many tasks are taken at once, and seconds how long to wait for them: numbers from 1.";
                Err(Refusal::new(ProblemCode::BadRequest, detail))
            }
        }
    }

    fn most(&self) -> Option<u16> {
        self.most.map(|most| most.min(TASKS_MAX))
    }

    fn patience(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(WAIT_SECONDS).min(WAIT_SECONDS_MAX);
        polls::about(Duration::from_secs(seconds))
    }
}

/// Waits for work, outside the doors: see [`later`].
async fn wait(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, Refusal> {
    let parts = request.into_parts().0;
    let (asking, wanted) = (Asking::of(&parts)?, Wanted::of(&parts)?);
    Ok(later(async move {
        work_for(&gateway, &asking, &wanted).await.unwrap_or_else(Refusal::into_response)
    }))
}

/// The work that somebody waits for. It is looked for only if there may be some, and before that it is asked who it is for; so it is
/// whenever somebody is woken. A wait that begins with nothing to look for is asked about together with the others that do.
async fn work_for(
    gateway: &Gateway,
    asking: &Asking,
    wanted: &Wanted,
) -> Result<Response, Refusal> {
    let first = asking.met.get().is_none();
    let (met, identity) = gateway.meet(asking).await?;
    let (node, mut known, mut asked) = (identity.node_id, first.then_some(identity), first);
    let poll = gateway.polls.begin(node);
    // Before the first look for work: what is queued after it rings.
    let bell = gateway.ctx.wake.on(Ring::Node(node.uuid()));
    let mut look = met.look();
    let mut roll_call = pin!(gateway.roll_call.of(asking.certificate));
    let last = gateway.ending.is_draining();
    let patience = if last { LAST_WAIT } else { wanted.patience() };
    let mut over = pin!(timeout(patience, pending::<()>()));
    loop {
        if let Some(look) = look.take() {
            // Whoever waits for work has room for what it waits for, and none for what it does in between.
            let claim = Box::pin(gateway.claim(asking, known.take(), wanted.most()));
            if let Some(handed_out) = claim.await? {
                return Ok(handed_out);
            }
            met.found_nothing(look);
            asked = true;
        }
        // Only the wait is cut short, never a claim: a task that was handed out must be handed over.
        tokio::select! {
            () = bell.notified() => {
                (look, known) = (met.look(), None);
                if look.is_none() {
                    gateway.identify(asking).await?;
                    asked = true;
                }
            }
            stands = roll_call.as_mut(), if !asked => {
                stands?;
                asked = true;
            }
            () = poll.displaced() => {
                gateway.identify(asking).await?;
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            _ = over.as_mut() => return Ok(StatusCode::NO_CONTENT.into_response()),
            () = gateway.ending.draining(), if !last => return Ok(StatusCode::NO_CONTENT.into_response()),
        }
    }
}
