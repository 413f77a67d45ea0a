//! What stands before every door: the token, how often it is used, what it may be used for, and that nothing unknown is
//! asked. What a member may in a project is the story's business.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use control::audit_log::denied;
use domain::policy::{Bearer, Permission};

use super::Door;
use crate::http::Front;
use crate::http::caller::{asked, authenticate};
use crate::http::params::only_known;
use crate::http::problem::Refusal;
use crate::http::rates::Rate;

/// Puts a guard before the door. It is asked before anything of the request is read but its head.
pub(super) fn before(
    door: Door,
    front: Front,
    methods: MethodRouter<Front>,
) -> MethodRouter<Front> {
    methods.route_layer(from_fn_with_state((front, Arc::new(door)), guard))
}

async fn guard(
    State((front, door)): State<(Front, Arc<Door>)>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&front, &door, &mut request).await {
        Ok(rate) => {
            let mut answer = next.run(request).await;
            if let Some(rate) = rate {
                rate.write(answer.headers_mut());
            }
            answer
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn admit(front: &Front, door: &Door, request: &mut Request) -> Result<Option<Rate>, Refusal> {
    let mut rate = None;
    if door.permission != Permission::Public {
        let asked = asked(request.extensions())?;
        let caller = authenticate(front, request.headers(), asked).await?;
        rate = Some(front.rates.token(caller.token_id)?);
        if let Err(error) = caller.needs(door.permission) {
            if door.permission.bearer() == Bearer::Operator {
                let name = format!("{} {}", door.method, door.path);
                denied::at_door(&front.ctx, &caller, &name, &error.to_string()).await?;
            }
            return Err(error.into());
        }
        request.extensions_mut().insert(caller);
    }
    only_known(request.uri().query(), &door.query)?;
    Ok(rate)
}
