//! Every role in a process of its own, and what each of them does not do.

use agent::{Config, SimulatedConfig};
use serde_json::{Value, json};
use testkit::House;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::process::{Person, Process, free, status, wish};

/// The simulated machine of a node that was just added, until `stop`.
pub(crate) fn machine(made: &Value, images: &Value, folder: &std::path::Path) -> Config {
    let text = |value: &Value| value.as_str().expect("it is text").to_owned();
    let images = images["items"].as_array().expect("a list");
    let machine = SimulatedConfig {
        images: images.iter().map(|image| (text(&image["code"]), text(&image["sha256"]))).collect(),
        speed: 0.0,
        ..SimulatedConfig::with_gpus(8, 2, "H100")
    };
    let mut config = Config::simulated(folder.to_owned(), machine);
    config.join = Some(text(&made["join_token"]));
    config
}

#[tokio::test]
async fn roles_in_processes_of_their_own_carry_an_allocation_through_its_life() {
    let house = House::open().await;
    let (apis, gateways) = ([free(), free()], [free(), free()]);
    let url = format!("https://{}", gateways[0]);
    let of_api = |at: &str| {
        Process::start(&house, "api", &[("BERTH_LISTEN_API", at), ("BERTH_GATEWAY_URL", &url)])
    };
    let of_gateway = |at: &str| Process::start(&house, "gateway", &[("BERTH_LISTEN_GATEWAY", at)]);
    let [first, second] = [of_api(&apis[0]).ready().await, of_api(&apis[1]).ready().await];
    let gateway = of_gateway(&gateways[0]).ready().await;
    assert_eq!(status(&gateways[1]).await, None, "who is no API does not listen as one");

    // A node that one API adds is the other one's too, and enrols at a gateway that neither of them is.
    let (tenant, operator) = (Person::tenant(&house).await, Person::operator(&house).await);
    let node = json!({ "name": "n", "region": "eu-1", "sku": "h100.slice", "slots": [0, 0, 0, 0, 1, 1, 1, 1] });
    let made = operator.post(&apis[0], "/admin/nodes", &node).await;
    let images = operator.get(&apis[1], "/images").await;
    let folder = tempfile::tempdir().expect("a folder");
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    agents.spawn(agent::run(machine(&made, &images, folder.path()), stop.clone()));

    // Without a relay and a worker it is accepted, truthfully stands still, and is carried on as soon as they are there.
    crate::process::first_heartbeat(&house).await;
    let nodes = operator.get(&apis[1], "/admin/nodes").await;
    assert_eq!(nodes["items"][0]["status"], "ready");
    let id = tenant.post(&apis[0], "/allocations", &wish(&house, 2)).await["id"].clone();
    let id = id.as_str().expect("an id");
    assert_eq!(tenant.get(&apis[1], &format!("/allocations/{id}")).await["status"], "requested");
    let relay = Process::start(&house, "relay", &[]).ready().await;
    let shown = tenant.get(&apis[1], &format!("/allocations/{id}")).await;
    assert_eq!(shown["status"], "requested", "a relay handles nothing");
    let worker = Process::start(&house, "worker,billing,notifier", &[]).ready().await;
    tenant.until(&apis[1], id, "active").await;

    // Another gateway knows the same agents: the authority and the keys are the installation's, not the process's.
    drop(gateway);
    let gateway = of_gateway(&gateways[0]).ready().await;
    let path = format!("/allocations/{id}/release");
    tenant.post(&apis[1], &path, &json!({})).await;
    tenant.until(&apis[0], id, "released").await;

    worker.signal("-TERM");
    let (code, said) = worker.end().await;
    assert_eq!(code, 0, "{said}");
    stop.cancel();
    while agents.join_next().await.is_some() {}
    drop((first, second, gateway, relay));
    house.close().await;
}
