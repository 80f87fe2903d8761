use super::*;

#[test]
fn lines_are_broken_at_blanks() {
    let mut out = String::new();
    wrap(&mut out, &format!("  {}", "word ".repeat(40)));
    assert!(out.lines().count() > 1);
    assert!(out.lines().all(|line| line.starts_with("  word") && line.chars().count() <= 100), "{out}");
    let mut out = String::new();
    wrap(&mut out, &"x".repeat(300));
    assert_eq!(out.lines().count(), 1);
}
