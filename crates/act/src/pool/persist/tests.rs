//! Files of an image, edited and restored.

use super::*;
use std::fs;

/// Root of an image beside a captured tree of a machine with 24 GiB.
struct Image {
    directory: tempfile::TempDir,
}

impl Image {
    fn new(files: &[(&str, &str)]) -> Image {
        let directory = tempfile::tempdir().unwrap();
        let image = Image { directory };
        for (size, pages) in [("2048kB", 12), ("1048576kB", 0)] {
            for (name, value) in [
                ("nr_hugepages", pages),
                ("free_hugepages", pages),
                ("resv_hugepages", 0),
                ("surplus_hugepages", 0),
                ("nr_overcommit_hugepages", 0),
            ] {
                let path = format!("kernel/sys/kernel/mm/hugepages/hugepages-{size}/{name}");
                image.write(&path, &format!("{value}\n"));
            }
        }
        let meminfo = "MemTotal: 25165824 kB\nMemAvailable: 20000000 kB\nHugepagesize: 2048 kB\n";
        image.write("kernel/proc/meminfo", meminfo);
        for (path, text) in files {
            image.write(&format!("image/{path}"), text);
        }
        fs::create_dir_all(image.path("image")).unwrap();
        image
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    fn write(&self, relative: &str, text: &str) {
        fs::create_dir_all(self.path(relative).parent().unwrap()).unwrap();
        fs::write(self.path(relative), text).unwrap();
    }

    fn text(&self, relative: &str) -> Option<String> {
        fs::read_to_string(self.path("image").join(relative)).ok()
    }

    fn request(&self, pools: &[&str]) -> PersistRequest {
        PersistRequest {
            pools: pools.iter().map(|text| text.parse().unwrap()).collect(),
            overcommit: Vec::new(),
            cma: None,
            default_size: None,
            thp: None,
            at_boot: false,
            loader: None,
            root: self.path("image"),
            memory: None,
        }
    }

    fn plan(&self, request: &PersistRequest) -> Result<PersistPlan, PersistError> {
        persist(&KernelRoot::captured(self.path("kernel")), request)
    }

    fn refusal(&self, pools: &[&str]) -> String {
        self.plan(&self.request(pools)).unwrap_err().to_string()
    }

    /// Returns every file below the image, with its text.
    fn everything(&self) -> Vec<(PathBuf, String)> {
        let (mut files, mut pending) = (Vec::new(), vec![self.path("image")]);
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    files.push((path.clone(), fs::read_to_string(path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

const GRUB: (&str, &str) =
    ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"quiet transparent_hugepage=madvise\"\n");
const CMDLINE: (&str, &str) = ("etc/kernel/cmdline", "root=/dev/vda1  rw\n");
const ENTRY: (&str, &str) = (
    "efi/loader/entries/debian.conf",
    "title Debian\nlinux /vmlinuz\noptions root=/dev/vda1\noptions   rw quiet\n",
);

#[test]
fn the_default_size_goes_to_sysctl_and_others_to_the_boot_parameters() {
    let image = Image::new(&[GRUB]);
    let mut request = image.request(&["2m=512", "1g=2"]);
    request.overcommit = vec!["2m=64".parse().unwrap()];
    let plan = image.plan(&request).unwrap();
    assert_eq!(plan.boot_parameters, ["hugepagesz=1G", "hugepages=2"]);
    assert_eq!(plan.next, [format!("chroot {} update-grub", image.path("image").display())]);
    assert_eq!(image.everything().len(), 1, "a plan writes nothing");
    plan.apply().unwrap();
    let sysctl = "vm.nr_hugepages = 512\nvm.nr_overcommit_hugepages = 64\n";
    assert_eq!(image.text("etc/sysctl.d/60-megapage.conf"), Some(format!("{MARKER}\n{sysctl}")));
    let grub = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages=2\"\n";
    assert_eq!(image.text("etc/default/grub.d/60-megapage.cfg"), Some(format!("{MARKER}\n{grub}")));

    assert!(image.plan(&request).unwrap().is_no_op(), "a second call finds nothing to do");
    // A pool that a call does not name is not persistent.
    image.plan(&image.request(&["2m=7"])).unwrap().apply().unwrap();
    assert_eq!(image.text("etc/default/grub.d/60-megapage.cfg"), None);
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.everything().len(), 1);
}

#[test]
fn pages_by_node_are_refused_where_no_kernel_reads_them() {
    let image = Image::new(&[GRUB]);
    let plan = |image: &Image| image.plan(&image.request(&["2m=0:48,1:32"]));
    assert!(plan(&image).unwrap().notes[0].contains("Linux 5.16 or later"), "which one will boot is unknown");
    image.write("image/lib/modules/5.10.0-32-amd64/modules.dep", "");
    let refused = plan(&image).unwrap_err().to_string();
    assert!(refused.starts_with("Linux 5.10 ignores pages by node at boot (since Linux 5.16)"), "{refused}");
    let mut request = image.request(&[]);
    request.cma = Some("0:1g,1:1g".into());
    assert!(matches!(image.plan(&request), Err(PersistError::NodesAtBoot { .. })));
    assert!(image.plan(&image.request(&["1g=2"])).unwrap().notes.is_empty(), "a value for the machine");
    image.write("image/usr/lib/modules/6.1.0-50-amd64/modules.dep", "");
    assert!(plan(&image).unwrap().notes[0].contains("Linux 5.10 is installed, too"));
    fs::remove_dir_all(image.path("image/lib/modules/5.10.0-32-amd64")).unwrap();
    assert!(plan(&image).unwrap().notes.is_empty());
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    let image = Image::new(&[]);
    for node in [0, 1] {
        image.write(&format!("kernel/sys/devices/system/node/node{node}/meminfo"), "");
    }
    image.write("kernel/proc/sys/kernel/osrelease", "6.12.0\n");
    let request = |pool| PersistRequest { root: "/".into(), ..image.request(&[pool]) };
    let refused = image.plan(&request("2m=0:48,7:32")).unwrap_err().to_string();
    assert_eq!(refused, "this machine has no node 7; it has 0, 1");
}

#[test]
fn the_largest_size_comes_first_and_every_size_before_its_count() {
    let image = Image::new(&[GRUB]);
    let mut request = image.request(&["2m=64", "1g=1"]);
    request.at_boot = true;
    let plan = image.plan(&request).unwrap();
    assert_eq!(plan.boot_parameters.join(" "), "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64");
    let plan = image.plan(&image.request(&["2m=0:100,1:300"])).unwrap();
    assert_eq!(plan.boot_parameters.join(" "), "hugepagesz=2M hugepages=0:100,1:300");
}

#[test]
fn without_a_pool_those_of_the_moment_are_kept() {
    let image = Image::new(&[]);
    image.plan(&image.request(&[])).unwrap().apply().unwrap();
    let text = image.text("etc/sysctl.d/60-megapage.conf").unwrap();
    assert!(text.ends_with("\nvm.nr_hugepages = 12\n"), "{text}");
    image.write("kernel/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
    assert!(image.refusal(&[]).starts_with("there is nothing to keep"));
}

#[test]
fn systemd_boot_gets_its_command_line_and_entries_edited_and_put_back() {
    let image = Image::new(&[CMDLINE, ENTRY]);
    let before = image.everything();
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    assert_eq!(image.text(CMDLINE.0).unwrap(), "root=/dev/vda1 rw hugepagesz=1G hugepages=2\n");
    let entry = image.text(ENTRY.0).unwrap();
    assert_eq!(
        entry,
        "title Debian\nlinux /vmlinuz\noptions root=/dev/vda1\noptions rw quiet hugepagesz=1G hugepages=2\n"
    );
    assert_eq!(image.text("etc/kernel/cmdline.megapage.bak").as_deref(), Some(CMDLINE.1));

    // Another value replaces the first, and the copy keeps the text of the beginning.
    image.plan(&image.request(&["1g=3"])).unwrap().apply().unwrap();
    assert_eq!(image.text(CMDLINE.0).unwrap(), "root=/dev/vda1 rw hugepagesz=1G hugepages=3\n");
    assert_eq!(image.text("etc/kernel/cmdline.megapage.bak").as_deref(), Some(CMDLINE.1));

    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.everything(), before, "byte for byte");
}

#[test]
fn later_changes_by_others_stay() {
    let image = Image::new(&[CMDLINE]);
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    image.write("image/etc/kernel/cmdline", "root=/dev/vdb1 rw hugepagesz=1G hugepages=2 debug\n");
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.text("etc/kernel/cmdline").unwrap(), "root=/dev/vdb1 rw debug\n");
}

#[test]
fn the_shell_lines_do_the_same() {
    let files = [CMDLINE, ENTRY];
    let (by_us, by_shell) = (Image::new(&files), Image::new(&files));
    by_us.plan(&by_us.request(&["2m=5", "1g=2"])).unwrap().apply().unwrap();
    let plan = by_shell.plan(&by_shell.request(&["2m=5", "1g=2"])).unwrap();
    run(&plan.commands);
    let relative = |image: &Image| {
        let root = image.path("image");
        let strip = |(path, text): (PathBuf, String)| (path.strip_prefix(&root).unwrap().to_path_buf(), text);
        image.everything().into_iter().map(strip).collect::<Vec<_>>()
    };
    assert_eq!(relative(&by_us), relative(&by_shell));
    run(&forget(&by_shell.request(&[])).unwrap().commands);
    assert_eq!(by_shell.everything().len(), files.len());
}

fn run(commands: &[String]) {
    let status = std::process::Command::new("sh").arg("-ec").arg(commands.join("\n")).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_machine_that_could_not_boot_is_refused() {
    let image = Image::new(&[GRUB]);
    let mut request = image.request(&["2m=2000"]);
    request.memory = Some(Bytes::gib(2));
    let error = image.plan(&request).unwrap_err().to_string();
    assert_eq!(
        error,
        "3.91 GiB in pools would leave 0 B of 2 GiB for everything else, below the 512 MiB that a machine needs to boot; \
         keep less"
    );
    request = image.request(&["2m=700"]);
    request.memory = Some(Bytes::gib(2));
    image.plan(&request).unwrap();
    assert!(image.refusal(&["1g=24"]).contains("24 GiB in pools would leave 0 B of 24 GiB"));
    assert!(image.refusal(&["1g=99999999999999999"]).contains("needs to boot"));
    // Pools with which the machine boots, but that leave little, are the owner's decision.
    let plan = image.plan(&image.request(&["1g=23"])).unwrap();
    assert!(
        plan.warnings[0]
            .contains("leave 1 GiB of 24 GiB for everything else: 4.2 %, below the safe floor of 1.20 GiB")
    );
    assert!(image.plan(&image.request(&["1g=22"])).unwrap().warnings.is_empty());
}

/// Returns the request for the command line that articles recommend for a search in 100 GiB: on
/// 128 GiB, 123 pages of 1 GiB, nothing else.
fn gigabytes(image: &Image) -> PersistRequest {
    PersistRequest {
        default_size: Some(PageSize::HUGE_1G),
        thp: Some(ThpEnabled::Never),
        memory: Some(Bytes::gib(128)),
        ..image.request(&["1g=123"])
    }
}

#[test]
fn nearly_all_memory_in_gigabyte_pages_is_written_with_a_warning() {
    let image = Image::new(&[
        ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"quiet\"\n"),
        ("etc/sysctl.d/9.conf", "vm.nr_hugepages=9\n"),
    ]);
    let before = image.everything();
    let plan = image.plan(&gigabytes(&image)).unwrap();
    let line = "transparent_hugepage=never default_hugepagesz=1G hugepagesz=1G hugepages=123";
    assert_eq!(plan.boot_parameters.join(" "), line);
    let memory = plan.memory.unwrap();
    assert_eq!((memory.left, memory.descriptors), (Bytes::gib(3), Bytes::gib(2)));
    assert!(plan.warnings.len() == 1 && plan.warnings[0].contains("2.3 %"), "{:?}", plan.warnings);
    assert!(plan.notes[0].contains("vm.nr_hugepages mean pages of 1g"), "{:?}", plan.notes);
    assert!(plan.notes[1].contains("9.conf sets vm.nr_hugepages too"), "{:?}", plan.notes);
    plan.apply().unwrap();
    assert!(image.text("etc/default/grub.d/60-megapage.cfg").unwrap().contains(line));
    assert!(image.plan(&gigabytes(&image)).unwrap().is_no_op());
    // The present default of 1 GiB comes from our own parameter: without it, the default is 2 MiB
    // again.
    image.write(
        "kernel/proc/meminfo",
        "MemTotal: 25165824 kB\nMemAvailable: 20000000 kB\nHugepagesize: 1048576 kB\n",
    );
    let plan = image.plan(&image.request(&["2m=512"])).unwrap();
    assert!(
        plan.boot_parameters.is_empty()
            && plan.edits[0].after.as_deref().unwrap().contains("vm.nr_hugepages = 512")
    );
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.everything(), before, "byte for byte");
}

#[test]
fn with_systemd_boot_words_of_others_stay_and_ours_go() {
    let image = Image::new(&[CMDLINE, ENTRY]);
    let before = image.everything();
    image.plan(&gigabytes(&image)).unwrap().apply().unwrap();
    let line = "transparent_hugepage=never default_hugepagesz=1G hugepagesz=1G hugepages=123";
    assert_eq!(image.text(CMDLINE.0).unwrap(), format!("root=/dev/vda1 rw {line}\n"));
    assert!(image.text(ENTRY.0).unwrap().ends_with(&format!("options rw quiet {line}\n")));
    assert!(image.plan(&gigabytes(&image)).unwrap().is_no_op());
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.everything(), before, "byte for byte");

    // A word set by hand after the pool: megapage neither removes nor sets it.
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    image.write(
        "image/etc/kernel/cmdline",
        "root=/dev/vda1 rw hugepagesz=1G hugepages=2 transparent_hugepage=madvise\n",
    );
    let refused = image.plan(&gigabytes(&image)).unwrap_err().to_string();
    assert!(
        refused.contains("cmdline: sets transparent_hugepage=madvise already, not by megapage"),
        "{refused}"
    );
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.text("etc/kernel/cmdline").unwrap(), "root=/dev/vda1 rw transparent_hugepage=madvise\n");
}

/// kernel-install(8) makes the entry from /etc/kernel/cmdline, our words included.
#[test]
fn the_entry_of_a_later_kernel_is_changed_along_and_cleaned() {
    let image = Image::new(&[CMDLINE, ENTRY]);
    image.plan(&gigabytes(&image)).unwrap().apply().unwrap();
    let later = "efi/loader/entries/debian-6.19.conf";
    let line = image.text(CMDLINE.0).unwrap();
    image.write(&format!("image/{later}"), &format!("linux /vmlinuz-6.19\noptions {line}"));
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    assert_eq!(
        image.text(later).unwrap(),
        "linux /vmlinuz-6.19\noptions root=/dev/vda1 rw hugepagesz=1G hugepages=2\n"
    );
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.text(later).unwrap(), "linux /vmlinuz-6.19\noptions root=/dev/vda1 rw\n");
    assert_eq!(image.everything().len(), 3, "and the two that were there");
    // Words other than those of the command line belong to another program.
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    image.write("image/efi/loader/entries/other.conf", "options hugepagesz=1G hugepages=5\n");
    assert!(image.refusal(&["1g=3"]).contains("other.conf: sets hugepages=5 already"));
}

/// An `options` line without words also counts as a line.
#[test]
fn an_odd_entry_is_put_back_as_it_was() {
    let image = Image::new(&[("boot/loader/entries/odd.conf", "options\n\toptions  a   b\ntitle x\n")]);
    let before = image.everything();
    image.plan(&image.request(&["1g=2"])).unwrap().apply().unwrap();
    forget(&image.request(&[])).unwrap().apply().unwrap();
    assert_eq!(image.everything(), before);
}

#[test]
fn a_default_size_and_thp_need_no_pool_and_are_checked() {
    let image = Image::new(&[GRUB]);
    image.write("kernel/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
    let mut request = image.request(&[]);
    request.default_size = Some(PageSize::HUGE_1G);
    assert_eq!(image.plan(&request).unwrap().boot_parameters, ["default_hugepagesz=1G"]);
    request.overcommit = vec!["2m=4".parse().unwrap()];
    let refused = image.plan(&request).unwrap_err().to_string();
    assert!(refused.contains("only the overcommit limit of the default size (1g)"), "{refused}");
    request.overcommit.clear();
    request.default_size = Some(PageSize::new(64 << 10).unwrap());
    let refused = image.plan(&request).unwrap_err().to_string();
    assert_eq!(refused, "--default-size 64k: this kernel has no pool of 64k pages; it has 2m, 1g");
    request.default_size = None;
    request.thp = Some(ThpEnabled::Always);
    let refused = image.plan(&request).unwrap_err().to_string();
    assert!(refused.ends_with("grub: sets transparent_hugepage already, not by megapage; take it out first"));
    request.thp = Some(ThpEnabled::Inherit);
    assert!(matches!(image.plan(&request), Err(PersistError::Thp(_))));
}

#[test]
fn files_that_set_the_same_are_respected() {
    let image = Image::new(&[("etc/default/grub", "GRUB_CMDLINE_LINUX=\"hugepages=5\"\n")]);
    assert!(
        image
            .refusal(&["1g=1"])
            .ends_with("grub: sets hugepages already, not by megapage; take it out first")
    );
    let image = Image::new(&[("etc/kernel/cmdline", "hugepages=5\n")]);
    assert!(image.refusal(&["1g=1"]).contains("cmdline: sets hugepages=5 already"));
    let image = Image::new(&[("etc/sysctl.d/60-megapage.conf", "vm.swappiness = 1\n")]);
    assert!(image.refusal(&["2m=1"]).contains("was not written by megapage"));
    let image = Image::new(&[("etc/sysctl.d/99-db.conf", "vm.nr_hugepages=9\n")]);
    let notes = image.plan(&image.request(&["2m=1"])).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].contains("99-db.conf sets vm.nr_hugepages too"), "{notes:?}");
}

#[test]
fn loaders_that_cannot_be_edited_are_named_with_what_to_do() {
    let image = Image::new(&[]);
    assert!(image.refusal(&["1g=1"]).ends_with("command line yourself: hugepagesz=1G hugepages=1"));
    let image = Image::new(&[("etc/default/grub", "GRUB_ENABLE_BLSCFG=true\n")]);
    let line = "run: grubby --update-kernel=ALL --args=\"hugepagesz=1G hugepages=1\"";
    assert!(image.refusal(&["1g=1"]).ends_with(line));
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let image = Image::new(&[GRUB]);
    assert!(image.refusal(&["2m=+5"]).contains("a persisted value is absolute"));
    assert!(image.refusal(&["2m=5", "2m=6"]).contains("given twice"));
    let mut request = image.request(&["1g=1"]);
    request.cma = Some("4g".into());
    assert!(image.plan(&request).unwrap_err().to_string().contains("exclude each other"));
    request.pools.clear();
    let plan = image.plan(&request).unwrap();
    assert_eq!(plan.boot_parameters, ["hugetlb_cma=4G"]);
    request.cma = Some("0:1g,1:512m".into());
    assert_eq!(image.plan(&request).unwrap().boot_parameters, ["hugetlb_cma=0:1G,1:512M"]);
    for text in ["", "much", "0", "4g,4g", "a:1g", "5k"] {
        request.cma = Some(text.into());
        assert!(matches!(image.plan(&request), Err(PersistError::Cma(_))), "{text}");
    }
    request.cma = None;
    request.overcommit = vec!["1g=1".parse().unwrap()];
    assert!(
        image
            .plan(&request)
            .unwrap_err()
            .to_string()
            .contains("only the overcommit limit of the default size")
    );
}

#[test]
fn an_image_is_not_left_through_a_link_on_the_way() {
    let image = Image::new(&[("etc/default/grub", "GRUB_TIMEOUT=5\n")]);
    let outside = image.path("outside");
    fs::create_dir(&outside).unwrap();
    for (pool, directory) in [("2m=512", "etc/sysctl.d"), ("1g=1", "etc/default/grub.d")] {
        let link = image.path("image").join(directory);
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let error = image.plan(&image.request(&[pool])).unwrap_err();
        assert!(matches!(&error, PersistError::LinkOnTheWay(_)), "{error}");
        fs::remove_file(&link).unwrap();
        // A link that is put there after the plan was made.
        let plan = image.plan(&image.request(&[pool])).unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        assert!(matches!(plan.apply(), Err(PersistError::LinkOnTheWay(_))));
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
