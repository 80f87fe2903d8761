//! Free page reporting: a guest tells its host which blocks are free, and the host takes them back
//! (mm/page_reporting.c of the kernel, Linux 5.7).

use crate::KernelRoot;

const DEVICES: &str = "sys/bus/virtio/devices";
/// VIRTIO_ID_BALLOON (linux/virtio_ids.h), as sysfs shows it.
const BALLOON: &str = "0x0005";
/// VIRTIO_BALLOON_F_REPORTING (linux/virtio_balloon.h): a bit of the features.
const REPORTING: usize = 5;

/// Returns the virtio balloon by which this guest's host learns of free memory, such as `virtio0`.
/// `None` if none uses that feature, or it cannot be read. The balloon of Hyper-V does not show it.
pub fn reporting_balloon(root: &KernelRoot) -> Option<String> {
    root.list(DEVICES).ok()?.into_iter().find(|device| {
        let read = |file: &str| root.read(format!("{DEVICES}/{device}/{file}")).unwrap_or_default();
        // One character for each bit, from bit 0 on: the features that device and driver agreed on
        // (features_show in drivers/virtio/virtio.c).
        read("device").trim() == BALLOON && read("features").as_bytes().get(REPORTING) == Some(&b'1')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_balloon_reports_where_the_feature_is_in_use() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert_eq!(reporting_balloon(&root), None);
        for (device, number, features, reports) in [
            ("virtio0", "0x0001\n", "0110010100000000\n", false),
            ("virtio1", "0x0005\n", "0110000100000000\n", false),
            ("virtio2", "0x0005\n", "", false),
            ("virtio3", "0x0005\n", "0110010100000000\n", true),
        ] {
            let directory = tree.path().join(DEVICES).join(device);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("device"), number).unwrap();
            fs::write(directory.join("features"), features).unwrap();
            assert_eq!(reporting_balloon(&root), reports.then(|| device.to_string()), "{device}");
        }
    }
}
