//! The check of a whole world: what its clients believe, held against its record.

use super::client::ClientStage;
use super::record_state::CLIENTS;
use super::world::SmallWorld;

/// P1, P2 as clients see it. A client that believes that it holds the lock does hold it, with its fence
/// and permits, and for at least as long. All clients together believe in no more permits than
/// there are. The fence of a guard is one that its grant has reserved.
///
/// A client whose lock was released by force believes in it until it learns that.
pub(super) fn check_world(world: &SmallWorld) -> Result<(), String> {
    let mut believed = 0;
    for (c, client) in (0..CLIENTS)
        .zip(&world.clients)
        .filter(|(_, client)| matches!(client.stage, ClientStage::Holding | ClientStage::Kept))
        .filter(|(_, client)| client.token != world.forced)
    {
        let permits = if client.downgraded {
            1
        } else {
            world.setting.permits(c)
        };
        let holder = client.token.and_then(|token| world.record.holder(token));
        let is_true = holder.is_some_and(|holder| {
            holder.fence == client.fence && holder.left >= client.left && holder.permits >= permits
        });
        if !is_true {
            return Err(format!(
                "P1: {:?} believes that it holds the lock, but the holders are {:?}",
                client.token, world.record.holders
            ));
        }
        if holder.is_some_and(|holder| u32::from(client.turn) > holder.spare) {
            return Err(format!(
                "P2: {:?} is in turn {}, and the record is {:?}",
                client.token, client.turn, world.record
            ));
        }
        believed += permits;
    }
    if believed > world.setting.kind.permits() {
        return Err(format!(
            "P1: clients believe that they hold {believed} permits together"
        ));
    }
    keepers_know(world)
}

/// P3: if nothing goes wrong, a process that keeps the lock always knows that others wait.
fn keepers_know(world: &SmallWorld) -> Result<(), String> {
    let setting = &world.setting;
    let record = &world.record;
    if world.is_disturbed {
        return Ok(());
    }
    let mut waiting = record.queue.iter();
    let Some(first) = waiting.find(|token| record.is_waiting(**token)) else {
        return Ok(());
    };
    for (c, client) in (0..CLIENTS).zip(&world.clients) {
        let has_lease = matches!(client.stage, ClientStage::Holding | ClientStage::Kept);
        if setting.keeps(c) && has_lease && !client.is_wanted() {
            return Err(format!(
                "P3: {:?} has the lock and does not know that {first:?} waits",
                client.token
            ));
        }
    }
    Ok(())
}
