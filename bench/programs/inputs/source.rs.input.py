"""A Rust library of 24 modules that use collections, traits and iterators."""

import sys

with open(sys.argv[1], "w") as out:
    for n in range(24):
        out.write(f"""
pub mod module{n} {{
    use std::collections::{{BTreeMap, HashMap}};
    #[derive(Clone, Debug, PartialEq)]
    pub struct Item{{ pub name: String, pub size: u64, pub parts: Vec<u32> }}
    pub trait Weigh {{ fn weigh(&self) -> u64; }}
    impl Weigh for Item {{
        fn weigh(&self) -> u64 {{ self.parts.iter().map(|&part| part as u64 * {n + 1}).sum::<u64>() + self.size }}
    }}
    pub fn group(items: &[Item]) -> BTreeMap<u64, Vec<Item>> {{
        let mut found: BTreeMap<u64, Vec<Item>> = BTreeMap::new();
        for item in items {{ found.entry(item.weigh() % {n % 17 + 2}).or_default().push(item.clone()); }}
        found
    }}
    pub fn index(items: &[Item]) -> HashMap<String, usize> {{
        items.iter().enumerate().filter(|(_, item)| item.size > {n}).map(|(at, item)| (item.name.clone(), at)).collect()
    }}
}}
""")
