use super::*;

use std::collections::BTreeSet;

#[test]
fn names_lead_to_one_entry() {
    let names: Vec<&str> = APPLICATIONS.iter().flat_map(|it| it.names).copied().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let units: Vec<&str> = APPLICATIONS.iter().flat_map(|it| it.units).copied().collect();
    assert_eq!(units.iter().collect::<BTreeSet<_>>().len(), units.len());
    assert!(Application::of_program("valkey-server").unwrap().disables_thp);
    assert_eq!(Application::of_program("ruby3.1").unwrap().names, ["ruby"]);
    assert_eq!(Application::of_unit("php8.2-fpm").unwrap().names[0], "php-fpm");
    assert_eq!(Application::of_unit("tomcat10").unwrap().java_variable, Some("CATALINA_OPTS"));
    assert!(Application::of_program("sort").is_none() && Application::of_unit("ssh").is_none());
}

#[test]
fn a_request_is_completed_where_nothing_was_chosen() {
    let redis = Application::of_program("redis-server").unwrap();
    let mut request = Request::plain("redis-server");
    redis.complete(&mut request, false);
    assert_eq!(request.fork, Fork::Snapshot);
    let mut pool = Request { heap: Heap::Hugetlb2M, ..Request::plain("redis-server") };
    redis.complete(&mut pool, false);
    assert_eq!(pool.fork, Fork::Auto, "the two exclude each other");
    assert_eq!(redis.options(), ["--fork", "snapshot"]);
    let postgres = Application::of_program("postgres").unwrap();
    for by_script in [false, true] {
        let mut request = Request::plain("postgres");
        postgres.complete(&mut request, by_script);
        assert_eq!(request.children, by_script, "backends are forked, and keep the library anyway");
    }
}

#[test]
fn a_pool_is_sized_by_what_was_seen() {
    let needs = Needs { shared: Some(Bytes::mib(128)), private: None };
    let postgres = Application::of_program("postgres").unwrap().lines(&needs);
    assert!(postgres[0].contains("megapage pool set 2MB:+71"), "{postgres:?}");
    assert!(postgres[1].starts_with("avoid huge_pages = on without"), "{postgres:?}");
    let unseen = Application::of_program("postgres").unwrap().lines(&Needs::default());
    assert!(unseen[0].contains("shared_memory_size_in_huge_pages"), "{unseen:?}");
}
