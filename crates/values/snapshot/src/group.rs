//! Owner of a process, by the path of its control group: a unit of systemd, a pod of Kubernetes.
//!
//! Sources: systemd.unit(5); the kubelet's cgroup drivers name groups `kubepods/.../podUID`
//! (cgroupfs) and `kubepods-...-podUID_WITH_UNDERSCORES.slice` (systemd).

/// Fewest characters of a pod's identifier: a static pod's is a hash without dashes.
const LEAST_UID: usize = 32;

/// Returns the innermost service or scope on a path such as `/system.slice/redis.service`: the unit
/// that systemctl(1) takes. `None` if the path has only slices of systemd.
pub fn unit(path: &str) -> Option<&str> {
    path.rsplit('/').find(|name| name.ends_with(".service") || name.ends_with(".scope"))
}

/// Returns the identifier of the pod that the control group at `path` belongs to, with dashes as
/// Kubernetes writes it.
pub fn pod(path: &str) -> Option<String> {
    path.split('/').find_map(|name| {
        let name = name.strip_suffix(".slice").unwrap_or(name);
        let uid = match name.rsplit_once("-pod") {
            Some((before, uid)) if before.contains("kubepods") => uid,
            _ => name.strip_prefix("pod").filter(|_| path.contains("kubepods"))?,
        };
        let is_uid = |c: char| c.is_ascii_hexdigit() || matches!(c, '-' | '_');
        (uid.len() >= LEAST_UID && uid.chars().all(is_uid)).then(|| uid.replace('_', "-"))
    })
}

/// Returns the identifier of a pod, and its namespace and name, from its directory of logs on the
/// node: `/var/log/pods/NAMESPACE_NAME_UID`. No name in Kubernetes holds an underscore.
pub fn pod_of_directory(name: &str) -> Option<(String, String)> {
    let mut parts = name.split('_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(space), Some(pod), Some(uid), None) if uid.len() >= LEAST_UID => {
            Some((uid.into(), format!("{space}/{pod}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d1e2f30-1111-2222-3333-444455556666";

    #[test]
    fn the_innermost_unit_counts() {
        assert_eq!(unit("/system.slice/redis-server.service"), Some("redis-server.service"));
        assert_eq!(unit("/system.slice/docker.service/worker"), Some("docker.service"));
        assert_eq!(
            unit("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope"),
            Some("app-x.scope")
        );
        assert_eq!((unit("/"), unit(""), unit("/batch/one"), unit("/user.slice")), (None, None, None, None));
    }

    #[test]
    fn a_pod_is_found_under_each_driver() {
        let with = UID.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{UID}/4f5e"),
            format!(
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{with}.slice/cri-containerd-4f.scope"
            ),
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{with}.slice/crio-4f.scope"),
            format!("/../../kubepods-pod{with}.slice/x"),
        ] {
            assert_eq!(pod(&path).as_deref(), Some(UID), "{path}");
        }
        let hash = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(pod(&format!("/kubepods/pod{hash}")).as_deref(), Some(hash), "a static pod");
        for none in ["/", "/system.slice/podman.service", "/kubepods/podium", &format!("/x/pod{UID}")] {
            assert_eq!(pod(none), None, "{none}");
        }
    }

    #[test]
    fn logs_name_pods() {
        let found = pod_of_directory(&format!("shop_cart-0_{UID}"));
        assert_eq!(found, Some((UID.into(), "shop/cart-0".into())));
        assert_eq!((pod_of_directory("shop_cart"), pod_of_directory("a_b_c")), (None, None));
    }
}
