//! Options that are one of several names, which the help lists.

use super::parse;
use crate::config::{
    AnyEngineName, Contestant, Durability, EngineName, Isolation, Mix, MixName, Named, RecordEngineName,
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use std::ffi::OsStr;

/// Reads one of the names that there are, which the help lists.
pub fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let listed = T::ALL.iter().map(|(_, name, what)| PossibleValue::new(*name).help(*what));
    PossibleValuesParser::new(listed).try_map(|text| by_name(&text).ok_or("there is no such name"))
}

/// Reads the name of an engine that keeps tables, or of any, and after an `@` what it differs in from the run.
#[derive(Clone)]
pub enum Contestants {
    /// Those with tables.
    Tables,
    /// All.
    Any,
}

impl TypedValueParser for Contestants {
    type Value = Contestant;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Contestant, clap::Error> {
        let text = value.to_str().unwrap_or_default();
        let (engine, words) = text.split_once('@').unwrap_or((text, ""));
        let engine = OsStr::new(engine);
        let mut contestant = match self {
            Self::Tables => Contestant::from(named::<EngineName>().parse_ref(command, argument, engine)?),
            Self::Any => Contestant::from(any_of(AnyEngineName::all()).parse_ref(command, argument, engine)?),
        };
        for word in words.split('+').filter(|_| text.contains('@')) {
            set(&mut contestant, word).map_err(|what| {
                clap::Error::raw(ErrorKind::InvalidValue, format!("{text}: {what}\n")).with_cmd(command)
            })?;
        }
        Ok(contestant)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = match self {
            Self::Tables => EngineName::ALL.iter().map(|(engine, ..)| (*engine).into()).collect(),
            Self::Any => AnyEngineName::all(),
        };
        Some(Box::new(listed(&names).into_iter()))
    }
}

/// Understands one setting of a contestant.
fn set(contestant: &mut Contestant, word: &str) -> Result<(), String> {
    if let Some(durability) = by_name(word) {
        contestant.durability = Some(durability);
    } else if let Some(isolation) = by_name(word) {
        contestant.isolation = Some(isolation);
    } else if let Some(size) = word.strip_prefix(Contestant::CHECKPOINT) {
        let bytes = if size == Contestant::NONE { u64::MAX } else { parse::size(size)? };
        contestant.checkpoint_log = Some(bytes);
    } else if word == Contestant::ARCHIVE {
        contestant.is_archived = true;
    } else if word == Contestant::HELD {
        contestant.is_snapshot_held = true;
    } else {
        let names = |all: Vec<&'static str>| all.join(", ");
        return Err(format!(
            "{word:?} is none of {}, {}, {}SIZE, {} and {}",
            names(Durability::ALL.iter().map(|(_, name, _)| *name).collect()),
            names(Isolation::ALL.iter().map(|(_, name, _)| *name).collect()),
            Contestant::CHECKPOINT,
            Contestant::ARCHIVE,
            Contestant::HELD,
        ));
    }
    Ok(())
}

fn by_name<T: Named>(text: &str) -> Option<T> {
    T::ALL.iter().find(|(_, name, _)| *name == text).map(|(value, ..)| *value)
}

/// Reads a workload of YCSB, or all.
pub fn mixes() -> impl TypedValueParser<Value = MixName> {
    let all = PossibleValue::new("all").help("All of them; E only with engines that have an order");
    let listed = Mix::ALL.iter().map(|(_, name, what)| PossibleValue::new(*name).help(*what)).chain([all]);
    PossibleValuesParser::new(listed).map(|text| {
        let found = Mix::ALL.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(&text));
        found.map_or(MixName::All, |(mix, ..)| MixName::One(*mix))
    })
}

/// Reads the name of an engine that has records.
pub fn engines_with_records() -> impl TypedValueParser<Value = AnyEngineName> {
    any_of(AnyEngineName::with_records())
}

/// The names of engines, and what these are.
fn listed(all: &[AnyEngineName]) -> Vec<PossibleValue> {
    let what = |name: &str| {
        let tables = EngineName::ALL.iter().find(|(_, other, _)| *other == name).map(|(.., what)| *what);
        let records =
            || RecordEngineName::ALL.iter().find(|(_, other, _)| *other == name).map(|(.., what)| *what);
        tables.or_else(records).unwrap_or_default()
    };
    all.iter().map(|engine| PossibleValue::new(engine.as_str()).help(what(engine.as_str()))).collect()
}

/// Reads one of these names.
fn any_of(all: Vec<AnyEngineName>) -> impl TypedValueParser<Value = AnyEngineName> {
    PossibleValuesParser::new(listed(&all)).try_map(move |text| {
        all.iter().copied().find(|engine| engine.as_str() == text).ok_or("there is no such engine")
    })
}

/// Reads the size of a key.
pub fn key_bytes() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["8", "16"]).try_map(|text| text.parse::<usize>())
}
