use super::*;

fn around() -> Surroundings {
    Surroundings { group: 33, ..Surroundings::open(Bytes::gib(8)) }
}

/// Returns the obstacles of a JVM of this release with a heap of 1 GiB, and a pool of 2 MiB pages
/// of this size.
fn of(version: u32, pool: Bytes, page: PageSize, shm: bool, around: &Surroundings) -> Vec<Obstacle> {
    let java = Java { version: Some(version), ..Java::default() };
    let options = Options { max_heap: Some(Bytes::gib(1)), shm, ..Options::default() };
    let need = Need::of(&options, &java, Bytes::gib(8));
    let question = Question { java: &java, options: &options, need: &need, page, pools: (pool, Bytes::ZERO) };
    obstacles(&question, around)
}

fn one(found: Vec<Obstacle>) -> Obstacle {
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn a_pool_that_holds_all_of_it_is_enough() {
    let two = PageSize::HUGE_2M;
    assert!(of(17, Bytes::gib(2), two, false, &around()).is_empty());
    assert!(of(8, Bytes::gib(2), two, false, &around()).is_empty(), "no right is needed in Java 8 either");
    let found = one(of(17, Bytes::mib(1100), two, false, &around()));
    let missing: u64 = found.remedy[0].strip_prefix("megapage pool set 2m:+").unwrap().parse().unwrap();
    assert!((90..=120).contains(&missing), "{missing}: heap and code cache are 632, 550 are there");
    assert!(found.what.contains("550 available") && found.what.contains("code cache 240 MiB"), "{found}");
}

#[test]
fn each_limit_is_named_with_what_repairs_it() {
    let (two, pool) = (PageSize::HUGE_2M, Bytes::gib(2));
    let limit = Limit(Some(Bytes::gib(1)));
    let data = one(of(17, pool, two, false, &Surroundings { data: limit, ..around() }));
    assert_eq!(data.remedy, ["ulimit -d unlimited"]);
    let addresses = one(of(17, pool, two, false, &Surroundings { address_space: limit, ..around() }));
    assert_eq!(addresses.remedy, ["ulimit -v unlimited"]);
    let tight = Surroundings { room_2m: Some(Bytes::gib(1)), ..around() };
    assert!(one(of(17, pool, two, false, &tight)).what.contains("control group"));
    let refused = Surroundings { page_refused: || Some("seccomp".into()), ..around() };
    assert!(one(of(17, pool, two, false, &refused)).what.contains("refused: seccomp"));
    let none = Surroundings { default_page: None, ..around() };
    assert!(one(of(17, pool, two, false, &none)).what.contains("no hugetlb pages"));
}

#[test]
fn other_page_sizes_came_with_java_17() {
    let big = |version| of(version, Bytes::gib(2), PageSize::HUGE_1G, false, &around());
    let found = one(big(17));
    assert_eq!(found.remedy, ["megapage pool set 1g:+1"]);
    let old = big(11);
    assert!(old[0].what.contains("Java 11 takes pages of the default size alone"), "{old:?}");
}

#[test]
fn segments_need_rights_that_mappings_do_not() {
    let small = Sysctls { shmmax: Some(Bytes::mib(32)), shmall: Some(4096), ..Sysctls::default() };
    let found = of(8, Bytes::gib(2), PageSize::HUGE_2M, true, &Surroundings { sysctls: small, ..around() });
    let remedies: Vec<&String> = found.iter().flat_map(|it| &it.remedy).collect();
    assert_eq!(remedies[0], "sysctl vm.hugetlb_shm_group=33");
    assert_eq!(remedies[1], "sysctl kernel.shmmax=1073741824");
    assert!(remedies[2].starts_with("sysctl kernel.shmall="), "{remedies:?}");
    let able = Surroundings { shm_permitted: true, ..around() };
    assert!(of(8, Bytes::gib(2), PageSize::HUGE_2M, true, &able).is_empty());
}
