//! A run as the main process of a systemd service. The tests play systemd.

use super::{gives, run_script};
use crate::process::wrapped;
use crate::support::Server;

#[test]
fn watchdog_of_a_service_is_its_commands() {
    let server = Server::start();
    let show = "echo watchdog-$WATCHDOG_PID";
    for (given, shown) in [("$$", ""), ("1", "1"), ("x", "x"), ("", "")] {
        let command = run_script(&server, &["a"], show);
        let script = format!("export WATCHDOG_PID={given}; exec \"$@\"");
        let by_systemd = wrapped(&["sh", "-c", &script, "sh"], &command);
        gives(by_systemd, 0, &format!("watchdog-{shown}\n"));
    }
}
