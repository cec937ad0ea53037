//! The page of `manx policy matrix --output html` in a real browser: it is opened from a file, filters, and explains a
//! clicked cell. The fragment of the address is the page's state, so a click needs no driver. A script after the page's
//! own measures the positions of elements.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
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

/// The page of these manifests.
fn page(directory: &Path, manifests: &Path) -> PathBuf {
    let output = Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(["policy", "matrix", "--output", "html"])
        .arg(manifests)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = directory.join("page.html");
    fs::write(&page, output.stdout).unwrap();
    page
}

/// The elements of the page after its script has run. The browser ends after a minute in any case.
fn dom(page: &Path, fragment: &str, options: &[&str]) -> String {
    let profile = page.with_file_name("profile");
    let output = Command::new("timeout")
        .args(["-k", "5", "60", BROWSER, "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--no-first-run", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(options)
        .arg(format!("file://{}{fragment}", page.display()))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("data-ready=\"yes\""), "{:?}: {errors}\n{text}", output.status);
    // The data are removed, because they are in the page as text even if the script does nothing.
    let data = text.find("<script id=\"data\"").unwrap();
    text[..data].to_owned()
}

/// Runs a script after the page's own, and returns the object that it returns.
fn measured(page: &Path, options: &[&str], script: &str) -> serde_json::Value {
    let probe = format!(
        "<script>{{ const measure = () => {{ {TOOLS} {script} }};\
         let said; try {{ said = measure(); }} catch (error) {{ said = String(error); }}\
         const told = document.createElement('pre'); told.id = 'measured'; told.hidden = true;\
         told.textContent = JSON.stringify(said); document.body.prepend(told); }}</script></body>"
    );
    let text = fs::read_to_string(page).unwrap();
    let probed = page.with_file_name("probed.html");
    assert_eq!(text.matches("</body>").count(), 1);
    fs::write(&probed, text.replace("</body>", &probe)).unwrap();
    let text = dom(&probed, "", options);
    let said = text.split("<pre id=\"measured\" hidden=\"\">").nth(1).unwrap();
    serde_json::from_str(said.split("</pre>").next().unwrap()).unwrap()
}

/// Functions that all scripts use.
const TOOLS: &str = "
const at = id => document.getElementById(id), box = element => element.getBoundingClientRect();
const scroll = at('scroll'), panel = at('panel'), corner = at('columns').cells[0];
const isVisible = element => element.checkVisibility() && box(element).width > 0 && box(element).height > 0;
const isInside = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1 &&
  inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
const isInWindow = element => isInside(box(element), { left: 0, top: 0, right: innerWidth, bottom: innerHeight });
// A cell is in sight if the headings do not lie over it.
const isInSight = cell => isInside(box(cell),
  { left: box(corner).right, top: box(corner).bottom, right: box(scroll).right, bottom: box(scroll).bottom });
const press = key => document.activeElement.dispatchEvent(
  new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
";

#[test]
fn the_page_filters_and_tells_what_a_cell_says() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // A path with markup in it: it must be shown as text.
    let file = directory.path().join("<b>shop<b>.yaml");
    fs::write(&file, OBJECTS).unwrap();
    let page = page(directory.path(), &file);

    let whole = dom(&page, "", &[]);
    assert!(whole.contains("6 sources, 6 destinations"), "{whole}");
    assert!(whole.contains("Click a cell"), "{whole}");
    assert!(whole.contains("<option value=\"kube-system\">"), "{whole}");
    assert!(whole.contains("<th title=\"kube-system/dns\" scope=\"row\">"), "{whole}");

    let filtered = dom(&page, "#from=shop&to-name=api", &[]);
    assert!(filtered.contains("2 sources, 1 destinations"), "{filtered}");
    assert!(filtered.contains("title=\"shop/web -&gt; shop/api: TCP 8080\""), "{filtered}");
    assert!(!filtered.contains("<th title=\"kube-system/dns\""), "{filtered}");

    // The page has the cell's fragment, which a click would put into the address.
    let title = "title=\"shop/web -&gt; shop/api: TCP 8080\" data-cell=\"";
    let at = filtered.find(title).unwrap() + title.len();
    let cell = filtered[at..].split('"').next().unwrap();
    let clicked = dom(&page, &format!("#cell={cell}"), &[]);
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
    // The page's own legend has marks: <b class="all">.
    assert!(!clicked.contains("<b>"), "{clicked}");
}

#[test]
fn the_matrix_has_the_room_and_the_panel_comes_with_the_first_click() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/shop/cluster.yaml");
    let page = page(directory.path(), &shop);
    let script = "
        const said = { columns: at('columns').cells.length, rows: at('rows').rows.length };
        said.panel_before = isVisible(panel);
        said.columns_cut = scroll.scrollWidth > scroll.clientWidth;
        said.rows_cut = scroll.scrollHeight > scroll.clientHeight;
        said.names_whole = [...document.querySelectorAll('th span')]
          .filter(span => !span.textContent.startsWith('other nodes'))
          .every(span => span.textContent === span.parentElement.title);
        const cell = [...document.querySelectorAll('td.all')].at(-1);
        cell.click();
        said.panel_clicked = isVisible(panel) && isInWindow(panel) && box(panel).left >= box(scroll).right;
        said.chosen = cell.classList.contains('chosen') && isInSight(cell);
        said.focused = document.activeElement === cell;
        press('Escape');
        said.panel_escaped = isVisible(panel);
        said.hash_escaped = location.hash;
        press('ArrowLeft');
        said.left = document.activeElement === cell.previousElementSibling;
        press('ArrowUp');
        press('Enter');
        const above = cell.parentElement.previousElementSibling.cells[cell.cellIndex - 1];
        said.panel_entered = isVisible(panel) && above.classList.contains('chosen');
        at('close').click();
        said.panel_closed = isVisible(panel);
        said.page_scrolls = document.documentElement.scrollWidth > innerWidth || document.documentElement.scrollHeight > innerHeight;
        return said;";
    let expected = |rows_cut: bool| {
        serde_json::json!({
            "columns": 15, "rows": 14, "panel_before": false, "columns_cut": false, "rows_cut": rows_cut,
            "names_whole": true, "panel_clicked": true, "chosen": true, "focused": true, "panel_escaped": false,
            "hash_escaped": "", "left": true, "panel_entered": true, "panel_closed": false, "page_scrolls": false,
        })
    };
    assert_eq!(measured(&page, &["--window-size=1440,1040"], script), expected(false));
    assert_eq!(measured(&page, &["--window-size=1100,768"], script), expected(true));
}

#[test]
fn headings_stay_while_one_scrolls_and_long_names_are_whole_on_hover() {
    use std::fmt::Write as _;
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for pod in 0..60 {
        let _ = writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a-pod-with-a-name-that-has-very-many-letters-{pod}, namespace: a-team-with-a-long-name-of-its-own-{}}}, \
             spec: {{containers: [{{name: c}}]}}, status: {{podIPs: [{{ip: 10.1.1.{pod}}}]}}}}",
            pod / 30
        );
    }
    let file = directory.path().join("many.yaml");
    fs::write(&file, text).unwrap();
    let page = page(directory.path(), &file);
    let script = "
        scroll.scrollTo(100000, 100000);
        const said = { scrolled: scroll.scrollTop > 100 && scroll.scrollLeft > 100 };
        const row = [...at('rows').rows].at(-1), name = row.cells[0];
        const cell = [...row.cells].at(-1), heading = [...at('columns').cells].at(-1);
        const seen = element => document.elementFromPoint(box(element).left + 8, box(element).bottom - 8).closest('th');
        said.heading = Math.abs(box(heading).top - box(scroll).top) <= 2 && seen(heading) === heading;
        said.column = box(heading).left === box(cell).left && box(heading).right === box(cell).right;
        said.name = Math.abs(box(name).left - box(scroll).left) <= 2 && seen(name) === name;
        said.corner = Math.abs(box(corner).top - box(scroll).top) <= 2 && Math.abs(box(corner).left - box(scroll).left) <= 2
          && seen(corner) === corner;
        said.in_sight = isInSight(cell);
        cell.click();
        for (const _ of at('rows').rows) { press('ArrowUp'); press('ArrowLeft'); }
        const first = at('rows').rows[0].cells[1];
        said.first = document.activeElement === first && isInSight(first);
        const long = [at('columns').cells[60], at('rows').rows[59].cells[0]];
        said.titles = long.map(th => th.title);
        said.texts = long.map(th => th.textContent);
        said.not_cut = long.every(th => isInside(box(th.firstElementChild), box(th)));
        said.page_scrolls = document.documentElement.scrollWidth > innerWidth || document.documentElement.scrollHeight > innerHeight;
        return said;";
    let whole =
        "a-team-with-a-long-name-of-its-own-1/a-pod-with-a-name-that-has-very-many-letters-59";
    let short = "a-team-with-\u{2026}f-its-own-1/a-pod-with-a-name-th\u{2026}ery-many-letters-59";
    assert_eq!(
        measured(&page, &["--window-size=1024,768"], script),
        serde_json::json!({
            "scrolled": true, "heading": true, "column": true, "name": true, "corner": true, "in_sight": true,
            "titles": [whole, whole], "texts": [short, short], "not_cut": true, "first": true, "page_scrolls": false,
        })
    );
}

#[test]
fn the_page_is_dark_for_who_wants_it() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.yaml");
    fs::write(&file, OBJECTS).unwrap();
    let page = page(directory.path(), &file);
    let script = "
        const light = colour => colour.match(/[0-9]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
        const is_legible = element => Math.abs(light(getComputedStyle(element).color) -
          light(getComputedStyle(element).backgroundColor)) > 200;
        return { dark: light(getComputedStyle(document.body).backgroundColor) < 200,
                 legible: [document.body, ...document.querySelectorAll('td:not(.absent)')].every(is_legible) };";
    for (scheme, dark) in [(0, true), (1, false)] {
        let option = format!("--blink-settings=preferredColorScheme={scheme}");
        let expected = serde_json::json!({ "dark": dark, "legible": true });
        assert_eq!(measured(&page, &[&option], script), expected);
    }
}
