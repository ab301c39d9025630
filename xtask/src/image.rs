//! The container image of `cargo xtask package`: an OCI image as one archive, made without a daemon
//! (OCI image specification 1.1). `podman load`, `docker load` and `skopeo copy oci-archive:FILE` read it.
//!
//! Its one layer holds the server, the shared libraries that it needs, the root certificates of this machine, and the
//! configuration of `packaging`, with the user `amped`, to which the server changes after it has bound its ports.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::command::{Outcome, output, program, root, run as run_command};
use crate::tree::{VERSION, add_program, install, write};

/// The number of the user and group `amped` in the image.
const USER: u32 = 999;

/// Directories that the user `amped` owns. The control socket, the state and logs are there.
const OWNED: [&str; 3] = ["run/amped", "var/lib/amped", "var/log/amped"];

/// Where Debian and most programs look for root certificates.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Makes the image from the programs in a directory, and returns its archive.
pub(crate) fn make(programs: &Path, out: &Path) -> Outcome<PathBuf> {
    let (tree, layout) = (out.join("image"), out.join("oci"));
    for folder in [&tree, &layout] {
        // An earlier run may have left files that do not belong to it any more.
        let _ = fs::remove_dir_all(folder);
    }
    fill(programs, &tree)?;
    let layer = out.join("layer.tar");
    let (architecture, time) = (architecture()?, commit_time());
    pack_layer(&tree, &layer, time)?;
    let uncompressed = digest(&layer)?;
    run_command(program("gzip").args(["-9", "--no-name", "--force"]).arg(&layer))?;
    let layer = add_blob(&layout, &layer.with_extension("tar.gz"), "layer.v1.tar+gzip")?;
    let created = output(program("date").args(["--utc", "--date", &format!("@{time}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    let config = json!({
        "created": created.trim(),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/amped"],
            "Cmd": ["serve", "--config", "/etc/amped/amped.toml"],
            "Env": ["PATH=/usr/bin"],
            "ExposedPorts": {"80/tcp": {}, "443/tcp": {}},
            "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": [uncompressed]},
        "history": [{"created": created.trim(), "created_by": "cargo xtask package"}],
    });
    let config = add_json(&layout, &config, "config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = add_json(&layout, &manifest, "manifest.v1+json")?;
    manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
    // The first for podman(1) and skopeo(1), the second for docker(1).
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": format!("localhost/amped:{VERSION}"),
        "io.containerd.image.name": format!("localhost/amped:{VERSION}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    write(&layout.join("index.json"), &index.to_string())?;
    write(&layout.join("oci-layout"), &json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    let file = out.join(format!("amped-{VERSION}-{}.oci.tar", std::env::consts::ARCH));
    run_command(tar("--create", &file, time).arg("--directory").arg(&layout).args([
        "blobs",
        "index.json",
        "oci-layout",
    ]))?;
    Ok(file)
}

/// Fills the tree with all files of the layer.
fn fill(programs: &Path, tree: &Path) -> Outcome {
    for name in ["amped", "amped-acme"] {
        add_program(&programs.join(name), &tree.join("usr/bin"), &tree.join("usr/share/doc/amped"))?;
    }
    for (from, to) in [
        ("packaging/image.toml", "etc/amped/amped.toml"),
        ("packaging/sites/00-default.toml", "etc/amped/sites/00-default.toml"),
        ("packaging/html/index.html", "usr/share/amped/html/index.html"),
    ] {
        install(&root().join(from), &tree.join(to), 0o644)?;
    }
    write(&tree.join("etc/passwd"), &format!("root:x:0:0::/:/\namped:x:{USER}:{USER}::/var/lib/amped:/\n"))?;
    write(&tree.join("etc/group"), &format!("root:x:0:\namped:x:{USER}:\n"))?;
    let certificates = Path::new("/").join(CERTIFICATES);
    if !certificates.exists() {
        return Err(format!("{} is missing: apt-get install ca-certificates", certificates.display()));
    }
    install(&certificates, &tree.join(CERTIFICATES), 0o644)?;
    // As merged in Debian; the loader is at a fixed path below /lib64 or /lib.
    for folder in ["lib", "lib64"] {
        fs::create_dir_all(tree.join("usr").join(folder))
            .and_then(|()| symlink(format!("usr/{folder}"), tree.join(folder)))
            .map_err(|error| format!("cannot create {folder} in {}: {error}", tree.display()))?;
    }
    for name in ["amped", "amped-acme"] {
        let needed = output(program("ldd").arg(programs.join(name)))?;
        for library in needed.split_whitespace().filter(|word| word.starts_with('/')) {
            install(Path::new(library), &tree.join(&library[1..]), 0o755)?;
        }
    }
    for folder in OWNED.into_iter().chain(["tmp"]) {
        fs::create_dir_all(tree.join(folder)).map_err(|error| format!("cannot create {folder}: {error}"))?;
    }
    Ok(())
}

/// Packs the tree, with the owner and mode of each directory.
fn pack_layer(tree: &Path, layer: &Path, time: u64) -> Outcome {
    let mut all = tar("--create", layer, time);
    all.args(OWNED.map(|folder| format!("--exclude=./{folder}"))).args(["--exclude=./tmp", "--directory"]);
    run_command(all.arg(tree).arg("."))?;
    let mut tmp = tar("--append", layer, time);
    run_command(tmp.args(["--mode=1777", "--directory"]).arg(tree).arg("./tmp"))?;
    let mut owned = tar("--append", layer, time);
    owned.args([format!("--owner={USER}"), format!("--group={USER}")]).args(["--mode=0750", "--directory"]).arg(tree);
    run_command(owned.args(OWNED.map(|folder| format!("./{folder}"))))
}

/// A tar(1) command that makes the same archive of the same files each time.
fn tar(action: &str, file: &Path, time: u64) -> std::process::Command {
    let mut tar = program("tar");
    tar.args([action, "--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{time}")).arg("--file").arg(file);
    tar
}

/// Moves a file into the layout, and returns its descriptor.
fn add_blob(layout: &Path, file: &Path, kind: &str) -> Outcome<Value> {
    let digest = digest(file)?;
    let size = fs::metadata(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?.len();
    let hash = digest.trim_start_matches("sha256:");
    install(file, &layout.join("blobs/sha256").join(hash), 0o644)?;
    fs::remove_file(file).map_err(|error| format!("cannot remove {}: {error}", file.display()))?;
    Ok(json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": size}))
}

/// Adds a document to the layout, and returns its descriptor.
fn add_json(layout: &Path, value: &Value, kind: &str) -> Outcome<Value> {
    let file = layout.join("document.json");
    write(&file, &value.to_string())?;
    add_blob(layout, &file, kind)
}

/// The SHA-256 digest of a file, as in a descriptor.
fn digest(file: &Path) -> Outcome<String> {
    let printed = output(program("sha256sum").arg(file))?;
    let hash = printed.split(' ').next().unwrap_or_default();
    Ok(format!("sha256:{hash}"))
}

/// The processor's name in images, which are those of Go.
fn architecture() -> Outcome<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        "riscv64" => Ok("riscv64"),
        other => Err(format!("no image is made for {other}")),
    }
}

/// The time of the current commit in seconds, so that one commit always makes the same image; 0 outside of a repository.
fn commit_time() -> u64 {
    let shown = output(program("git").args(["log", "-1", "--format=%ct"]));
    shown.ok().and_then(|time| time.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::served::first_page;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    fn read_json(file: &Path) -> Value {
        serde_json::from_slice(&fs::read(file).expect("read")).expect("JSON")
    }

    /// The file of a descriptor, whose size and digest must be right.
    fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
        let name = descriptor["digest"].as_str().expect("a digest");
        let file = layout.join("blobs").join(name.replace(':', "/"));
        assert_eq!(digest(&file).expect("read"), name);
        assert_eq!(fs::metadata(&file).expect("there").len(), descriptor["size"].as_u64().expect("a size"));
        file
    }

    #[test]
    fn image_serves_a_page_as_its_own_user() {
        let folder = std::env::temp_dir().join(format!("amped-image-{}", std::process::id()));
        let (layout, tree) = (folder.join("layout"), folder.join("tree"));
        for folder in [&folder, &layout, &tree] {
            fs::create_dir_all(folder).expect("created");
        }
        let profile = std::env::current_exe().expect("this program");
        let programs = profile.ancestors().nth(2).expect("the directory of the profile");
        let image = make(programs, &folder).expect("`cargo build --workspace` has built all programs");
        let unpack = |file: &Path, into: &Path| {
            let mut tar = Command::new("tar");
            run_command(tar.args(["--extract", "--same-owner", "--file"]).arg(file).arg("--directory").arg(into))
                .expect("unpacked (this test must run as root)");
        };
        unpack(&image, &layout);
        let index = read_json(&layout.join("index.json"));
        let manifest = read_json(&blob(&layout, &index["manifests"][0]));
        let config = read_json(&blob(&layout, &manifest["config"]));
        let layer = blob(&layout, &manifest["layers"][0]);
        unpack(&layer, &tree);
        let plain = folder.join("layer");
        run_command(Command::new("sh").args(["-c", "gunzip < \"$0\" > \"$1\""]).args([&layer, &plain]))
            .expect("unpacked");
        assert_eq!(Value::from(digest(&plain).expect("read")), config["rootfs"]["diff_ids"][0]);

        let owner = |name: &str| fs::metadata(tree.join(name)).expect("there").uid();
        assert_eq!((owner("run/amped"), owner("var/lib/amped"), owner("etc/amped")), (USER, USER, 0));
        let words = ["Entrypoint", "Cmd"].map(|key| config["config"][key].as_array().expect("words").clone());
        let mut serve = Command::new("chroot");
        serve.arg(&tree).args(words.iter().flatten().map(|word| word.as_str().expect("text")));
        let response = first_page(&mut serve);
        assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("amped is running"), "{response}");
        assert_eq!(owner("run/amped/control"), USER);
        fs::remove_dir_all(folder).expect("removed");
    }
}
