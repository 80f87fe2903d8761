use super::*;

#[test]
fn releases_are_identified_by_their_files() {
    // Texts from Debian's and Temurin's packages.
    let eight = "JAVA_VERSION=\"1.8.0_412\"\nOS_NAME=\"Linux\"\nSOURCE=\"\"\n";
    let eleven = "IMPLEMENTOR=\"Eclipse Adoptium\"\nJAVA_VERSION=\"11.0.23\"\nJVM_VARIANT=\"Hotspot\"\n";
    let later = "JAVA_VERSION=\"21.0.3\"\nJVM_VARIANT=\"Openj9\"\n";
    assert_eq!(Java::of_release(eight).version, Some(8));
    assert_eq!(Java::of_release(eleven), Java { version: Some(11), ..Java::default() });
    let found = Java::of_release(later);
    assert_eq!((found.version, found.other_vm.as_deref()), (Some(21), Some("Openj9")));
    assert_eq!(Java::of_release("nothing of it"), Java::default());
    assert_eq!(Java::of_release("JAVA_VERSION=\"25-ea\"").version, Some(25));
    assert_eq!(Java::of_release("JAVA_VERSION=\"soon\"").version, None);
}

#[test]
fn an_argument_file_that_is_a_pipe_is_left_to_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let (file, pipe) = (directory.path().join("file"), directory.path().join("pipe"));
    std::fs::write(&file, "-Xmx1g").unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut java = Java::default();
    java.read_argument_files(&[&file, &pipe].map(|path| format!("@{}", path.display())));
    let read: Vec<&str> = java.argument_files.values().map(String::as_str).collect();
    assert_eq!(read, ["-Xmx1g"]);
}

#[test]
fn the_file_is_found_from_the_executable() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("jdk8");
    std::fs::create_dir_all(home.join("jre/bin")).unwrap();
    std::fs::create_dir_all(home.join("bin")).unwrap();
    std::fs::write(home.join("release"), "JAVA_VERSION=\"1.8.0_412\"\n").unwrap();
    for place in ["bin", "jre/bin"] {
        std::fs::write(home.join(place).join("java"), "").unwrap();
        assert_eq!(Java::of(&home.join(place).join("java")).version, Some(8), "{place}");
    }
    assert_eq!(Java::of(&directory.path().join("none")), Java::default());
    let environment = |name: &str, value: &Path| {
        BTreeMap::from([
            ("PATH".to_string(), "/nowhere".to_string()),
            (name.to_string(), value.display().to_string()),
        ])
    };
    assert_eq!(Java::installed(&environment("JAVA_HOME", &home)).unwrap().version, Some(8));
    assert_eq!(Java::installed(&environment("PATH", &home.join("jre/bin"))).unwrap().version, Some(8));
    assert_eq!(Java::installed(&environment("JAVA_HOME", Path::new("/nowhere"))), None);
}
