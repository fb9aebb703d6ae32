//! Tables with types of keys and values.

use vellum::{Database, Error, ErrorKind, Options, Put, Table, TableName};

const PEOPLE: TableName<(u32, String), i64> = TableName::new("people");

fn database() -> (tempfile::TempDir, Database) {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &Options::default()).unwrap();
    (directory, database)
}

#[test]
fn operations_take_and_give_the_types() {
    let (_directory, database) = database();
    let people = database.create_table(PEOPLE).unwrap();
    assert_eq!(people.put((1, "ada"), 36).unwrap(), Put::Inserted);
    assert_eq!(people.put((1, String::from("ada")), -1).unwrap(), Put::Replaced);
    assert!(people.insert((&1, "alan"), 41).unwrap() && !people.insert((1, "alan"), 0).unwrap());
    assert!(people.update((1, "alan"), 42).unwrap() && !people.update((2, "alan"), 0).unwrap());
    assert_eq!((people.get((1, "ada")).unwrap(), people.get((1, "alan")).unwrap()), (Some(-1), Some(42)));
    assert!(people.contains((1, "ada")).unwrap() && !people.contains((0, "ada")).unwrap());
    assert_eq!(people.value_length((1, "ada")).unwrap(), Some(8));
    let found =
        people.multi_get(&[(1, "alan"), (7, "nobody")]).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(found, [Some(42), None]);
    let put = people.multi_put(&[((2, "grace"), 85), ((1, "ada"), 36)]);
    assert_eq!(put.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [Put::Inserted, Put::Replaced]);
    let updated = people.multi_update(&[((2, "grace"), 86), ((3, "grace"), 1)]);
    assert_eq!(updated.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [true, false]);
    assert!(people.remove((1, "alan")).unwrap() && !people.remove((1, "alan")).unwrap());

    database
        .run(|transaction| {
            let age = transaction.get_for_update(&people, (2, "grace"))?.unwrap_or_default();
            transaction.put(&people, (2, "grace"), age + 1)?;
            assert_eq!(transaction.get(&people, (2, "grace"))?, Some(87));
            assert!(transaction.contains(&people, (1, "ada"))?);
            assert_eq!(transaction.remove_range(&people, (1, "")..(2, ""))?, 1);
            Ok(())
        })
        .unwrap();
    assert_eq!((people.get((1, "ada")).unwrap(), people.get((2, "grace")).unwrap()), (None, Some(87)));

    let squares = database.create_table(TableName::<u16, u32>::new("squares")).unwrap();
    assert_eq!(squares.bulk_load((0..500).map(|number| (number, u32::from(number).pow(2)))).unwrap(), 500);
    assert_eq!(squares.get(400).unwrap(), Some(160_000));
}

#[test]
fn an_option_inside_a_tuple_is_given_with_its_type() {
    let (_directory, database) = database();
    let table = database.create_table(TableName::<(u64, Option<u32>), str>::new("options")).unwrap();
    table.put((7, None::<u32>), "none").unwrap();
    table.put((7, Some(1)), "one").unwrap();
    assert_eq!(table.get((7, None::<u32>)).unwrap().as_deref(), Some("none"));
    assert_eq!(table.first().unwrap().unwrap().0, (7, None));
}

#[test]
fn futures_take_and_give_the_types() {
    let (_directory, database) = database();
    let people = database.create_table(PEOPLE).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        assert_eq!(people.put_async((1, "ada"), 36).await.unwrap(), Put::Inserted);
        assert!(people.update_async((1, "ada"), 37).await.unwrap());
        assert!(!people.insert_async((1, "ada"), 38).await.unwrap());
        assert_eq!(people.get_async((1, "ada")).await.unwrap(), Some(37));
        people.as_bytes().put(people_key(), "short").unwrap();
        assert!(matches!(people.get_async((1, "ada")).await, Err(Error::Malformed { table, .. }) if table == "people"));
        assert!(people.remove_async((1, "ada")).await.unwrap());
    });
}

fn people_key() -> vellum::KeyBuffer {
    vellum::KeyBuffer::of::<(u32, String)>(&(1, "ada"))
}

#[test]
fn a_table_is_opened_with_its_own_types_only() {
    let (directory, database) = database();
    database.create_table(PEOPLE).unwrap().put((1, "ada"), 36).unwrap();
    database.create_table("plain").unwrap().put("key", "value").unwrap();
    database.close().unwrap();

    let database = Database::open(directory.path().join("d"), &Options::default()).unwrap();
    assert_eq!(database.table(PEOPLE).unwrap().get((1, "ada")).unwrap(), Some(36));
    let refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        error.to_string()
    };
    let message = refused(database.table("people").unwrap_err());
    assert!(
        message.contains("from (u32, str) to i64") && message.contains("from bytes to bytes"),
        "{message}"
    );
    refused(database.table(TableName::<(u32, String), u64>::new("people")).unwrap_err());
    refused(database.table_or_create(TableName::<u32, i64>::new("people")).unwrap_err());
    refused(database.table(TableName::<str, [u8]>::new("plain")).unwrap_err());

    // One that has no types in the catalog is one of bytes, by whatever name these go.
    let plain: Table<Vec<u8>, [u8]> = database.table(TableName::new("plain")).unwrap();
    assert_eq!(plain.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    let people = database.table_as_bytes("people").unwrap();
    assert_eq!(people.get(people_key()).unwrap().map(|value| value.len()), Some(8));
    let listed = database.tables().unwrap();
    let listed: Vec<_> =
        listed.iter().map(|table| (&*table.name, &*table.key_type, &*table.value_type)).collect();
    assert_eq!(listed, [("people", "(u32, str)", "i64"), ("plain", "bytes", "bytes")]);
}

#[test]
fn what_is_not_of_the_type_is_an_error_that_says_so() {
    let (_directory, database) = database();
    let names = database.create_table(TableName::<u8, str>::new("names")).unwrap();
    names.as_bytes().put([7], b"\xff\xfe").unwrap();
    let error = names.get(7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains("names") && error.to_string().contains("str"), "{error}");
    // Where the program does not know which it is, the error names the key.
    names.put(6, "six").unwrap();
    let met =
        [names.range(..).unwrap().nth(1), names.range(..).unwrap().next_back(), names.last().transpose()];
    for error in met.map(|met| met.unwrap().unwrap_err()) {
        assert!(matches!(&error, Error::Malformed { key: Some(key), .. } if *key == [7]), "{error:?}");
        assert!(
            error.to_string().starts_with("the value of the key \"\\x07\" of table \"names\""),
            "{error}"
        );
    }
    let transaction = database.begin().unwrap();
    assert!(matches!(transaction.get(&names, 7), Err(Error::Malformed { what: "value", .. })));
    // It may go on: nothing was changed.
    transaction.put(&names, 7, "seven").unwrap();
    transaction.commit().unwrap();
    assert_eq!(names.get(7).unwrap().as_deref(), Some("seven"));
}

#[test]
fn the_name_of_a_type_has_a_limit() {
    type Four<T> = (T, T, T, T);
    type Long = Four<Four<Four<Four<u8>>>>;
    let (_directory, database) = database();
    let error = database.create_table(TableName::<Long, ()>::new("long")).unwrap_err();
    assert!(matches!(&error, Error::TypeName { limit: 400, .. }), "{error}");
    assert!(database.tables().unwrap().is_empty());
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::*;
    use serde::{Deserialize, Serialize, Serializer};
    use vellum::{Serde, ValueType};

    #[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
    struct Person {
        name: String,
        friends: Vec<u64>,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Person")]
    struct Other(u8);

    #[derive(Deserialize)]
    struct Refuses;

    impl Serialize for Refuses {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it will not"))
        }
    }

    #[test]
    fn values_are_what_serde_makes_of_them() {
        let (_directory, database) = database();
        let people = database.create_table(TableName::<u64, Serde<Person>>::new("people")).unwrap();
        let ada = Person { name: "Ada".to_owned(), friends: vec![2, 3] };
        people.put(1, &ada).unwrap();
        people.put(2, ada.clone()).unwrap();
        assert_eq!((people.get(1).unwrap(), people.get(2).unwrap()), (Some(ada.clone()), Some(ada)));
        people.as_bytes().put(1u64.to_be_bytes(), [9]).unwrap();
        assert!(
            matches!(people.get(1), Err(Error::Malformed { type_name, .. }) if type_name == "postcard(Person)")
        );
    }

    #[test]
    fn the_name_is_that_of_serde() {
        assert_eq!(<Serde<Person> as ValueType>::type_name(), "postcard(Person)");
        assert_eq!(<Serde<Other> as ValueType>::type_name(), "postcard(Person)");
        assert_eq!(<Serde<Vec<Person>> as ValueType>::type_name(), "postcard");
    }

    #[test]
    fn what_cannot_be_encoded_is_an_error() {
        let (_directory, database) = database();
        let table = database.create_table(TableName::<u8, Serde<Refuses>>::new("t")).unwrap();
        let error = table.put(1, Refuses).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("Refuses"), "{error}");
        assert!(table.multi_put(&[(1, Refuses)]).pop().unwrap().is_err());
        let put = table.put_async(1, Refuses);
        assert!(tokio::runtime::Runtime::new().unwrap().block_on(put).is_err());
        assert!(!table.contains(1).unwrap());
    }
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u32),
        Text(String),
    }

    #[derive(Serialize, Deserialize)]
    struct LeavesOut {
        first: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        second: Option<u8>,
    }

    #[test]
    fn what_could_not_be_read_back_is_not_stored() {
        let (_directory, database) = database();
        let table = database.create_table(TableName::<u8, Serde<Untagged>>::new("t")).unwrap();
        for value in [Untagged::Number(7), Untagged::Text("text".to_owned())] {
            let error = table.put(1, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("read back"), "{error}");
        }
        assert!(table.first().unwrap().is_none());
        let table = database.create_table(TableName::<u8, Serde<LeavesOut>>::new("u")).unwrap();
        let value = |second| LeavesOut { first: "text".to_owned(), second };
        table.put(1, value(Some(1))).unwrap();
        assert!(table.put(1, value(None)).is_err());
        assert_eq!(table.get(1).unwrap().unwrap().second, Some(1));
    }
}
