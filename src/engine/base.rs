//! The owners on which all others stand, as they are made. This is a list and owns nothing itself.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::client::Client;
use crate::engine::grants::Grants;
use crate::engine::hearing::Hearing;
use crate::engine::holding::Holding;
use crate::engine::life::Life;
use crate::engine::upkeep::{Intake, Upkeep};
use crate::engine::waiter::{Askers, WaiterRegistry};
use crate::engine::waiting::Waiting;
use crate::store::Store;

#[derive(Clone)]
pub(super) struct Base {
    pub(super) life: Arc<Life>,
    pub(super) client: Arc<Client>,
    pub(super) hearing: Arc<Hearing>,
    pub(super) upkeep: Arc<Upkeep>,
    pub(super) holding: Arc<Holding>,
    pub(super) registry: Arc<WaiterRegistry>,
    /// The waiters that ask again, where the store has no queue.
    pub(super) askers: Arc<Askers>,
    pub(super) grants: Arc<Grants>,
    pub(super) waiting: Arc<Waiting>,
}

impl Base {
    /// The owners, and what the renewal thread receives.
    pub(super) fn new(config: Config, store: Box<dyn Store>) -> (Base, Intake) {
        let life = Arc::new(Life::new(store.clock()));
        let client = Arc::new(Client::new(config, store, &life));
        let hearing = Arc::new(Hearing::new(&client));
        let (upkeep, intake) = Upkeep::new(&client);
        let upkeep = Arc::new(upkeep);
        let holding = Arc::new(Holding::new(&life, &client, &upkeep, &hearing));
        let registry = Arc::new(WaiterRegistry::new());
        let askers = Arc::new(Askers::new());
        let grants = Arc::new(Grants::new(
            &life, &client, &upkeep, &holding, &registry, &askers,
        ));
        let waiting = Arc::new(Waiting::new(&client, &upkeep, &registry, &grants));
        let base = Base {
            life,
            client,
            hearing,
            upkeep,
            holding,
            registry,
            askers,
            grants,
            waiting,
        };
        (base, intake)
    }
}
