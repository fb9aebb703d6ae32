//! Tables whose keys and values have types: numbers, tuples, and structures by `serde`.
//!
//! Run it by `cargo run -p vellum --example typed_tables`.

use serde::{Deserialize, Serialize};
use vellum::{Database, Options, Result, Serde, TableName};

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Station {
    name: String,
    latitude: f64,
    longitude: f64,
}

/// The stations by their numbers.
const STATIONS: TableName<u32, Serde<Station>> = TableName::new("stations");
/// What was measured: by station and time (seconds since 1970), in degrees.
const TEMPERATURES: TableName<(u32, i64), f32> = TableName::new("temperatures");
/// An index: the numbers of the stations by their names. There is nothing to store under the keys.
const BY_NAME: TableName<(String, u32), ()> = TableName::new("stations by name");

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a folder for the example");
    let database = Database::create(directory.path().join("weather.vellum"), &Options::default())?;
    let stations = database.create_table(STATIONS)?;
    let temperatures = database.create_table(TEMPERATURES)?;
    let by_name = database.create_table(BY_NAME)?;

    // A station and its entry in the index are stored together or not at all.
    for (number, name, latitude, longitude) in
        [(3, "Jena", 50.93, 11.58), (1, "Ulm", 48.40, 9.99), (2, "Ulm", 48.38, 9.95)]
    {
        let station = Station { name: name.to_owned(), latitude, longitude };
        database.run(|transaction| {
            transaction.put(&stations, number, &station)?;
            transaction.put(&by_name, (name, number), ())?;
            Ok(())
        })?;
    }
    for (number, hour, degrees) in [(1, -1, 3.5), (1, 0, 2.0), (1, 1, -0.5), (2, 0, 2.5), (3, 0, f32::NAN)] {
        temperatures.put((number, hour * 3600), degrees)?;
    }
    assert_eq!(stations.get(3)?.map(|station| station.name), Some("Jena".to_owned()));
    assert_eq!(temperatures.get((1, -3600))?, Some(3.5));

    // Keys are in their order, negative times before zero. The hours of one station, the latest first:
    for entry in temperatures.prefix((1,))?.rev() {
        let ((_, time), degrees) = entry?;
        println!("{:>3} h {degrees:>5} degrees", time / 3600);
    }
    let in_ulm: Vec<u32> = by_name.prefix(("Ulm",))?.map(|entry| Ok(entry?.0.1)).collect::<Result<_>>()?;
    assert_eq!(in_ulm, [1, 2]);

    // The catalog knows the types: a table is not read as what it is not.
    let error = database.table(TableName::<u32, f32>::new("temperatures")).expect_err("it has other keys");
    println!("{error}");
    for table in database.tables()? {
        println!("{}: {} to {}", table.name, table.key_type, table.value_type);
    }
    Ok(())
}
