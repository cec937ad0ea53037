//! The page of `manx policy matrix --output html` in a real browser: it is opened from a file, filters, and tells what
//! a clicked cell says. The fragment of the address is the page's state, so a click needs no driver.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use manx_fixtures::skip::{Need, skip};

const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: dns, namespace: kube-system}, spec: {containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.4}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: only-web, namespace: shop}, spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}]}}
";

/// The name of Debian's browser.
const BROWSER: &str = "chromium";

/// Whether there is a browser.
fn has_browser() -> bool {
    let version = Command::new(BROWSER).arg("--version").output();
    let found = version.is_ok_and(|output| output.status.success());
    if !found {
        let reason = format!("there is no {BROWSER}: apt-get install {BROWSER}");
        skip(Need::Browser, "the page of manx policy matrix", &reason);
    }
    found
}

/// The elements of the page after its script has run. The browser ends after a minute in any case.
fn dom(page: &Path, profile: &Path, fragment: &str) -> String {
    let output = Command::new("timeout")
        .args(["-k", "5", "60", BROWSER, "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--no-first-run", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}{fragment}", page.display()))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("data-ready=\"yes\""), "{:?}: {errors}\n{text}", output.status);
    // The data stand in the page as text, and would be found in it whatever the script did.
    let data = text.find("<script id=\"data\"").unwrap();
    text[..data].to_owned()
}

#[test]
fn the_page_filters_and_tells_what_a_cell_says() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // A path with markup in it: it must be shown as text.
    let file = directory.path().join("<b>shop<b>.yaml");
    fs::write(&file, OBJECTS).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(["policy", "matrix", "--output", "html"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let (page, profile) = (directory.path().join("page.html"), directory.path().join("profile"));
    fs::write(&page, output.stdout).unwrap();

    let whole = dom(&page, &profile, "");
    assert!(whole.contains("6 sources, 6 destinations"), "{whole}");
    assert!(whole.contains("Click a cell"), "{whole}");
    assert!(whole.contains("<option value=\"kube-system\">"), "{whole}");

    let filtered = dom(&page, &profile, "#from=shop&to-name=api");
    assert!(filtered.contains("2 sources, 1 destinations"), "{filtered}");
    assert!(filtered.contains("title=\"shop/web -&gt; shop/api: TCP 8080\""), "{filtered}");
    assert!(!filtered.contains("<th>kube-system/dns</th>"), "{filtered}");

    // The cell's place is in the page: what a click would put into the address.
    let title = "title=\"shop/web -&gt; shop/api: TCP 8080\" data-cell=\"";
    let at = filtered.find(title).unwrap() + title.len();
    let cell = filtered[at..].split('"').next().unwrap();
    let clicked = dom(&page, &profile, &format!("#cell={cell}"));
    for part in [
        "<h2>shop/web -&gt; shop/api</h2>",
        "passes: TCP 8080",
        "allowed by shop/only-web ingress[0]",
        "TCP from port 49152 to port 8080: ALLOWED",
        "TCP from port 49152 to port 80: DENIED",
        "class=\"some chosen\"",
        "/&lt;b&gt;shop&lt;b&gt;.yaml:8:1)",
    ] {
        assert!(clicked.contains(part), "{part} is not in {clicked}");
    }
    assert!(!clicked.contains("<b>"), "{clicked}");
}
