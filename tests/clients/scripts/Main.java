// Java's own HTTP client, as LangChain4j and Spring AI use it. Driven by test_java.py.
//   java Main.java URL
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

class Main {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();  // it prefers HTTP/2, so it offers h2c
        for (var stream : new boolean[] {false, false, true}) {
            var body = "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}], \"stream\": %s}";
            var request = HttpRequest.newBuilder(URI.create(arguments[0] + "/v1/chat/completions"))
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body.formatted("x".repeat(70000), stream)))
                .build();
            var answer = client.send(request, BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version() + " "
                + answer.body().replace("\n", " "));
        }
    }
}
